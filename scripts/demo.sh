#!/usr/bin/env bash
# From a drafter of the training library to one that a serving engine loads, and back, byte for byte.
# Called by `make demo`; needs ckptmorph on the PATH and nothing else. Ends with an error when anything is off.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

source=tests/fixtures/speculators-0.3.0-eagle3
old=sglang@0.5.9
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
served=$scratch/served
raw=$scratch/raw
back=$scratch/back

bold='' plain=''
if [[ -t 1 && -z ${NO_COLOR:-} ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi

step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

# Say a command and run it. Paths of the temporary folder are shown without it.
show() {
    local shown="$*"
    printf '  $ %s\n' "${shown//"$scratch/"/}"
    "$@" | sed "s#$scratch/##g; s/^/    /"
}

fail() { printf 'demo: %s\n' "$*" >&2; exit 1; }

# Run a command that must end with the exit code given first.
expect() {
    local wanted=$1 code=0
    shift
    show "$@" || code=$?
    [[ $code == "$wanted" ]] || fail "exit code $code instead of $wanted: $*"
}

command -v ckptmorph >/dev/null || fail "ckptmorph is not on the PATH; call this with: make demo"
[[ -f $source/model.safetensors ]] || fail "there is no drafter in $source"

step "1. What is this?"
show ckptmorph inspect "$source" | sed -n '1,/^ *facts$/p' | sed '/^ *$/d; /^ *facts$/d'

step "2. Convert it for an engine"
expect 0 ckptmorph convert "$source" "$served" --to "$old"

step "3. Will the engine load all of it? Ask for that release, and for the newest one known"
expect 0 ckptmorph verify "$served" --for "$old"
expect 0 ckptmorph verify "$served" --for "${old%@*}"

step "4. And without renaming? The same config with the tensors as they were: the engine would start, and draft noise"
mkdir "$raw"
cp "$served/config.json" "$source/model.safetensors" "$raw"
expect 1 ckptmorph verify "$raw" --for "$old" --target-arch LlamaForCausalLM
ckptmorph verify "$raw" --for "$old" --json >"$scratch/raw.json" || true
dropped=$(python3 -c 'import json, sys; print(len(json.load(sys.stdin)["tensors"]["dropped"]))' <"$scratch/raw.json")
((dropped > 0)) || fail "the engine was expected to drop tensors with these names"

step "5. Back again"
expect 0 ckptmorph convert "$served" "$back" --to speculators
expect 0 ckptmorph diff "$source" "$back"
for file in model.safetensors config.json; do
    cmp "$source/$file" "$back/$file" || fail "$file did not come back as it was"
    printf '    %s\n' "$(cd "$back" && sha256sum "$file") is what it was"
done

step "Done"
cat <<END
  converted   $source for $old, and back
  checked     everything is loaded by ${old%@*} at ${old#*@} and at its newest known release
  avoided     $dropped tensors that ${old%@*} would have dropped without a word
  unchanged   model.safetensors and config.json after the way there and back: the same bytes
END
