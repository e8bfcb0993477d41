"""A wrong schema file is refused with the place, the word and the nearest right one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptmorph.api import convert, inspect
from ckptmorph.errors import SchemaError
from ckptmorph.permutes import _NAMED
from ckptmorph.schema.check import parse_data
from ckptmorph.schema.check_names import PERMUTATIONS
from ckptmorph.schema.kinds import KINDS
from ckptmorph.schema.positions import load_yaml
from ckptmorph.schema.registry import builtin_folder, load_registry
from ckptmorph.schemas_api import checked
from tests.builders import build

STRANGER = Path(__file__).parent / "stranger"


def refused(text: str) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        parse_data(*load_yaml(text, "f.yaml"))
    assert caught.value.exit_code == 3
    assert caught.value.where is not None
    return caught.value


def edited(tmp_path: Path, file: str, old: str, new: str) -> tuple[Path, int]:
    """The stranger's schemas with one text replaced; also the line it stands in, from 1."""
    folder = tmp_path / "edited"
    shutil.copytree(STRANGER, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    return folder, text[: text.index(old)].count("\n") + 1


def refused_together(folder: Path) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        load_registry((folder,))
    assert caught.value.where is not None
    return caught.value


# --- one file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(builtin_folder().rglob("*.yaml")), ids=lambda f: f.name)
def test_what_we_ship_is_right(file: Path) -> None:
    assert checked(file).findings == ()


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
UNSET = """unused:
  - contains: norm
    when: {when}
    because: so
    source: {{repo: a/b, path: c, release: 2.0.0}}
"""


@pytest.mark.parametrize(
    ("when", "flag"),
    [
        ("norm_before_fc", "norm_before_fc"),
        ("not norm_before_fc and norm_output", "norm_before_fc"),
        ("form == 'example' and norm_before_fc", "norm_before_fc"),
        ("form == 'another' and norm_before_fc", None),  # the form decides
        ("norm_output", None),  # fixed before 2.1, required since
        ("drafter.norm_before_fc", None),  # what the drafter says is not what the engine reads
        ("not own_lm_head", None),
        ("D == V", None),  # sizes are another matter
    ],
)
def test_a_condition_about_a_flag_that_may_have_no_value(tmp_path: Path, when: str, flag: str | None) -> None:
    """It counts as false without a word; whoever wrote the contract should know."""
    for file in EXAMPLES.glob("*.yaml"):
        text = file.read_text(encoding="utf-8")
        if file.name == "engine.yaml":
            text += UNSET.format(when=when)
        (tmp_path / file.name).write_text(text, encoding="utf-8")
    found = checked(tmp_path / "engine.yaml", [tmp_path]).findings
    assert [(f.code, f.message.split()[0]) for f in found] == ([("flag-without-value", flag)] if flag else [])
    if flag:
        assert found[0].where is not None and "engine.yaml:" in found[0].where
        assert "(2.0.0 to 2.1.0)" in found[0].message


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_refuses_an_unknown_key(kind: str) -> None:
    error = refused(f"schema_version: 1\n{kind}: x\nabuot: typo\n")
    assert error.code == "bad-schema"
    assert str(error.where).startswith("f.yaml:")


FRAGMENT = "schema_version: 1\nfragment: x\nabout: y\nconfig:\n  - {fact: a, at: b, %s}\n"


@pytest.mark.parametrize(
    ("key", "near"), [("defualt: 1", "default"), ("becuase: x", "because"), ("requierd: true", "required")]
)
def test_a_misspelt_key(key: str, near: str) -> None:
    error = refused(FRAGMENT % key)
    assert (error.where, error.hint) == ("f.yaml:5:22", f"did you mean {near}?")
    assert key.split(":")[0] in error.message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("default: 1", "needs 'because' and 'source'"),
        ("fixed: 1, because: x", "needs 'because' and 'source'"),
        ("default: null, source: {repo: a/b, path: c, release: d}", "needs 'because' and 'source'"),
        ("set: c", "either 'fact' or 'set'"),
        ("when: 2 ** 3", "expression"),
        ("versions: newest", "not a version range"),
        ("write: perhaps", "bool"),
        ("pick: some", "pick"),
        ("source: {repo: a/b}", "path"),
    ],
)
def test_a_line_that_is_not_whole(line: str, says: str) -> None:
    error = refused(FRAGMENT % line)
    assert says in error.message
    assert str(error.where).startswith("f.yaml:5:")


@pytest.mark.parametrize("word", ["no", "yes", "on", "'false'", "0", "1"])
def test_a_flag_is_true_or_false_and_nothing_like_it(word: str) -> None:
    """YAML 1.1 habits must not slip through as a text that somebody turns into a flag."""
    assert "write" in refused(FRAGMENT % f"write: {word}").message


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("schema_version: 2\nfragment: x\n", "f.yaml:1:17"),
        ("schema_version: '1'\nfragment: x\n", "f.yaml:1:17"),
        ("schema_version: true\nfragment: x\n", "f.yaml:1:17"),
        ("fragment: x\n", "f.yaml:1:1"),
        ("schema_version: 1\nnothing: x\n", "f.yaml:1:1"),
        ("- a\n", "f.yaml:1:1"),
        ("just a text\n", "f.yaml:1:1"),
    ],
)
def test_what_is_no_schema_file(text: str, where: str) -> None:
    assert refused(text).where == where


NAMES = (
    "schema_version: 1\nlayout: x\nalgorithm: eagle3\nabout: y\nwritten_by: {library: z, versions: '>=1'}\n"
)
NAMES += "source: {repo: a/b, path: c, release: d}\ndetect: []\nconfig: []\nnames:\n  - {%s}\n"


@pytest.mark.parametrize(
    "line",
    [
        "tensor: a",
        "name: a",
        "tensor: a, tensors: [b], name: c",
        "tensor: a, name: b, absent: true",
        "tensors: [a, b], name: c",
        "tensor: a, name: b, concat: 0",
        "tensors: [a, b], name: c, concat: 0, shape: [1]",
        "tensors: [a, b], name: c, concat: 0, permute: rope_split(1)",
        "tensor: 'a.{i', name: b",
        "tensor: 'a*b', name: b",
        "tensor: a, name: '{i}{j}'",
        "tensor: a, name: b, form: relative",
        "tensor: a, name: b, permute: rope_split",
        "tensor: a, name: b, permute: rope_split(2 **)",
        "tensor: a, name: b, permute: {a: 7}",
    ],
)
def test_a_name_line_that_is_not_whole(line: str) -> None:
    assert str(refused(NAMES % line).where).startswith("f.yaml:10:")


# --- together with the others -----------------------------------------------------------------------------------------

OUT = 'name: "net.blocks.{i+1}.out"'
K_PERMUTED = '"layers.{i}.self_attn.k_proj.weight": rope'
ABSOLUTE = "form: absolute}"
HERE = "because: a test, source: {{repo: x/y, path: z, release: '1'}}"
SIZES = "sizes:\n  - {{tensor: [{}], dim: {}, " + HERE + "}}\nmissing:\n"
WRONG = [
    ("layout", "algorithm: eagle3", "algorithm: eagel3", "eagel3", "eagle3"),
    ("layout", "{use: hf_decoder,", "{use: hf_decodr,", "hf_decodr", "hf_decoder"),
    (
        "layout",
        "{fact: norm_before_res",
        "{fact: norm_befor_res",
        "norm_befor_residual",
        "norm_before_residual",
    ),
    ("layout", "codec: dtype", "codec: dtpye", "dtpye", "dtype"),
    ("layout", "{tensor: norm.weight,", "{tensor: nrom.weight,", "nrom.weight", "norm.weight"),
    ("layout", "when: logit_scale != 1.0", "when: logit_sclae != 1.0", "logit_sclae", "logit_scale"),
    ("layout", "shape: [1, H]", "shape: [1, hiden_size]", "hiden_size", "hidden_size"),
    ("layout", OUT, 'name: "net.blocks.{k+1}.out"', "'k'", None),
    ("layout", OUT, 'name: "net.block.out"', "share one name", None),
    ("layout", 'name: "net.blocks.{i+1}.*"', 'name: "net.blocks.{i+1}.rest"', "'*'", None),
    ("layout", "rope_interleave(heads)", "rope_interlaeve(heads)", "rope_interlaeve", "rope_interleave"),
    ("layout", "rope_interleave(heads)", "rope_interleave(heds)", "heds", "heads"),
    ("layout", K_PERMUTED, K_PERMUTED.replace("k_proj", "o_proj"), "o_proj", None),
    (
        "layout",
        ABSOLUTE,
        ABSOLUTE + "\n  - {tensor: lm_head.weight, name: net.h, form: offset}",
        "lm_head",
        None,
    ),
    ("layout", "concat: 0", "concat: 2", "no dimension 2", None),
    ("layout", "shape: [1, H]}", "shape: [1, H], zeros_like: fc.wieght}", "fc.wieght", "fc.weight"),
    ("layout", "shape: [1, H]}", "shape: [1, H], zeros_like: fc.weight}", "not the same as no tensor", None),
    ("layout", '- {tensor: "*", name: "net.*"}', "", "covers", None),
    ("layout", "args: {h: id + 1, order: list}", "args: {order: list}", "needs h or engine", None),
    ("layout", "args: {h: id + 1, order: list}", "args: {h: ix + 1, order: list}", "'ix'", None),
    ("layout", "args: {h: id + 1, order: list}", "args: {h: id +, order: list}", "not an expression", None),
    ("layout", "args: {h: id + 1, order: list}", "args: {h: 1, order: list}", "no expression", None),
    ("layout", "args: {h: id + 1, order: list}", "args: {hh: id + 1, h: id}", "'hh'", None),
    ("layout", "args: {h: id + 1, order: list}", "args: {engine: oddsrve}", "oddsrve", "oddserve"),
    (
        "layout",
        "codec: table, args: {table: {true: normed, false: raw}}",
        "codec: table",
        "needs table",
        None,
    ),
    ("layout", "at: odd.taps, codec: length, write: false", "at: odd.taps, write: false", "a states", None),
    ("layout", "codec: length, write: false", "codec: length, stays: true", "'write: false'", None),
    (
        "layout",
        "{fact: dtype, at: odd.dtype, codec: dtype",
        "{fact: dtype, at: odd.dtype, codec: states, args: {h: id}",
        "spells a states",
        None,
    ),
    (
        "layout",
        "{tensor: fc.weight, name: net.mix}",
        "{tensor: fc.weight, absent: true}",
        "part of every drafter",
        None,
    ),
    ("engine", "releases: [", "releases: [newest, ", "not a version", None),
    ("engine", "layout: oddfellow", "layout: oddfelow", "oddfelow", "oddfellow"),
    ("engine", "require: L < 3", "require: layers < 3", "layers", None),
    ("engine", "require: L < 3", "require: drafter.num_hiden_layers < 3", "num_hiden_layers", None),
    ("engine", "missing:\n  - {does", "missing:\n  - {when: fomr == 'x', does", "fomr", None),
    (
        "engine",
        "missing:\n  - {does",
        "missing:\n  - {tensor: [fc.weight, nrom.weight], does",
        "nrom.weight",
        "norm.weight",
    ),
    ("layout", "names:\n", "only_for: norm_befor_fc\nnames:\n", "norm_befor_fc", "norm_before_fc"),
    (
        "engine",
        "missing:\n  - {does",
        "missing:\n  - {tensor: nrom.weight, does",
        "nrom.weight",
        "norm.weight",
    ),
    (
        "engine",
        "missing:\n  - {does",
        "missing:\n  - {loses: [nrom.weight], does",
        "nrom.weight",
        "norm.weight",
    ),
    ("engine", "missing:\n", SIZES.format("nrom.weight", 0), "nrom.weight", "norm.weight"),
    ("engine", "missing:\n", SIZES.format("norm.weight", 1), "no dimension 1", None),
    ("engine", "missing:\n", SIZES.format("norm.weight", -1), "no dimension -1", None),
    ("engine", 'lowest: "0"', 'lowest: "m"', "'m'", None),
    ("engine", "cases: [{h: id + 1}]", "cases: [{h: idx + 1}]", "idx", None),
    ("engine", "{fact: rope_theta,", "{fact: rope_tehta,", "rope_tehta", "rope_theta"),
]


@pytest.mark.parametrize(
    ("file", "old", "new", "says", "near"), WRONG, ids=[f"{w[0]}-{w[3]}-{k}" for k, w in enumerate(WRONG)]
)
def test_what_does_not_fit_the_others(
    tmp_path: Path, file: str, old: str, new: str, says: str, near: str | None
) -> None:
    folder, line = edited(tmp_path, f"{file}.yaml", old, new)
    error = refused_together(folder)
    assert says in error.message
    shown, row, _ = str(error.where).rsplit(":", 2)
    assert shown == f"{folder}/{file}.yaml"
    first = (
        1 if says == "covers" else line - 5
    )  # a line that is missing has no place but the list it belongs to
    assert first <= int(row) <= line + 1, "the place is the line itself"
    if near is not None:
        assert error.hint == f"did you mean {near}?"


def test_the_place_is_the_line_and_column_of_the_word(tmp_path: Path) -> None:
    folder, line = edited(tmp_path, "layout.yaml", "{fact: draft_vocab_size", "{fact: draft_vocab_siez")
    assert refused_together(folder).where == f"{folder}/layout.yaml:{line}:12"


HUB = [
    ("H: hidden_size", "H: hiden_size", "hiden_size"),
    ("a: {count: A}", "a: {count: B}", "'B'"),
    ("a: {count: A}", "a: {count: A}\n  z: {count: L}", "no tensor has the index 'z'"),
    ("identity: [fc.weight,", "identity: [fc.wieght,", "fc.wieght"),
    ("shown: norm_before_fc", "shown: norm_befor_fc", "norm_befor_fc"),
    ("fc.weight: {shape: [H, A*T]}", "fc.weight: {shape: [H, A*W]}", "'W'"),
    ("fc.weight: {shape: [H, A*T]}", "fc.weight: {shape: [H, vocab_size]}", "'vocab_size'"),  # no dimension
    ("derive: target_mask", "derive: target_maks", "target_maks"),
    ("counted_by: num_aux_states", "counted_by: num_states", "counted_by"),
    ("blocks_of: [fc.weight,", "blocks_of: [fc.wieght,", "fc.wieght"),
    ("require: len(aux_states) == A", "require: len(aux_state) == A", "aux_state"),
    ("layers.{i}.hidden_norm.weight: {shape: [H], where: i == 0}", "layers.{k}.h: {shape: [H]}", "'k'"),
]


@pytest.mark.parametrize(("old", "new", "says"), HUB)
def test_a_hub_that_does_not_fit_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, says: str
) -> None:
    folder = tmp_path / "schemas"
    shutil.copytree(builtin_folder(), folder)
    hub = folder / "eagle3" / "algorithm.yaml"
    text = hub.read_text()
    assert old in text
    hub.write_text(text.replace(old, new, 1))
    with monkeypatch.context() as patched:
        patched.setattr("ckptmorph.schema.registry.builtin_folder", lambda: folder)
        with pytest.raises(SchemaError) as caught:
            load_registry.__wrapped__()
    assert says in caught.value.message
    assert caught.value.where is not None and "algorithm.yaml" in caught.value.where


def test_an_engine_says_how_ids_become_states_if_drafters_have_states(tmp_path: Path) -> None:
    text = (STRANGER / "engine.yaml").read_text()
    folder, _ = edited(tmp_path, "engine.yaml", text[text.index("capture:") :], "")
    assert "'capture' is missing: eagle3 has auxiliary states" in refused_together(folder).message


# An algorithm without auxiliary states, and an engine that reads it.
STATELESS = {
    "algorithm.yaml": "schema_version: 1\nalgorithm: plain\nabout: x\ndims: {H: hidden_size}\nindex: {}\n"
    "tensors: {fc.weight: {shape: [H, H]}}\nfacts: {hidden_size: {type: int, about: x}}\nidentity: [fc.weight]\n",
    "engine.yaml": "schema_version: 1\nengine: plainserve\nalgorithm: plain\nabout: x\n"
    "source: {repo: a/b, path: c, release: d}\nreleases: ['1']\nforms: []\n"
    'names: [{tensor: "*", name: "*"}]\nunknown: []\nmissing: []\n',
}


def test_capture_is_left_out_without_states(tmp_path: Path) -> None:
    for name, text in STATELESS.items():
        (tmp_path / name).write_text(text)
    assert load_registry((tmp_path,)).engine("plain", "plainserve").capture is None


def test_an_engine_without_a_form_needs_no_rules(tmp_path: Path) -> None:
    """It loads no such drafter: no names, and no capture, whatever the algorithm has."""
    text = STATELESS["engine.yaml"].replace('[{tensor: "*", name: "*"}]', "[]")
    (tmp_path / "engine.yaml").write_text(text.replace("algorithm: plain", "algorithm: eagle3_mla"))
    assert load_registry((tmp_path,)).engine("eagle3_mla", "plainserve").forms == []


def test_capture_says_nothing_without_states(tmp_path: Path) -> None:
    engine = (STRANGER / "engine.yaml").read_text()
    for name, text in STATELESS.items():
        (tmp_path / name).write_text(text)
    with (tmp_path / "engine.yaml").open("a") as file:
        file.write(engine[engine.index("capture:") :])
    error = refused_together(tmp_path)
    assert error.message == "'capture' is for auxiliary states, and plain has none"
    assert str(error.where).startswith(f"{tmp_path}/engine.yaml:11:")


def test_the_permutations_that_may_be_named_exist() -> None:
    assert set(PERMUTATIONS) == set(_NAMED)


def test_checking_a_file_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    folder, line = edited(tmp_path, "layout.yaml", "codec: dtype", "codec: dtpye")
    found = checked(folder / "layout.yaml").findings
    assert [f.code for f in found] == ["bad-schema"]
    assert found[0].where is not None and f"layout.yaml:{line}:" in found[0].where
    assert found[0].hint == "did you mean dtype?"


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: [1\n")
    assert [f.code for f in checked(path).findings] == ["bad-yaml"]


def test_ids_come_from_the_file_or_from_an_option(tmp_path: Path) -> None:
    folder, _ = edited(tmp_path, "engine.yaml", "  at: [odd.taps]\n", "  at: [odd.taps]\n  option: --taps\n")
    assert "'at' must be empty" in refused_together(folder).message


def test_where_ids_are_given_each_rule_says_what_they_mean(tmp_path: Path) -> None:
    folder, _ = edited(tmp_path, "engine.yaml", "      cases: [{h: id + 1}]\n", "")
    assert "each rule needs 'cases'" in refused_together(folder).message


def test_only_a_vocabulary_map_ascends(tmp_path: Path) -> None:
    old = "{tensor: norm.weight, name: net.norm, shape: [1, H]}"
    folder, _ = edited(tmp_path, "layout.yaml", old, "{tensor: norm.weight, name: net.norm, ascending: true}")
    assert refused_together(folder).message == "'norm.weight' is no vocabulary map, so nothing ascends"


def test_the_condition_of_a_cut_is_checked(tmp_path: Path) -> None:
    old = "{tensor: norm.weight, name: net.norm, shape: [1, H]}"
    cut = "cut: {id: gone, severity: lossy, when: nobody > 1, because: rows of another kind}"
    folder, _ = edited(tmp_path, "layout.yaml", old, f"{{tensor: norm.weight, name: net.norm, {cut}}}")
    assert refused_together(folder).message.startswith("name 'nobody' is not known")


def test_only_a_vocabulary_map_has_an_identity(tmp_path: Path) -> None:
    old = "{tensor: norm.weight, name: net.norm, shape: [1, H]}"
    folder, line = edited(
        tmp_path, "layout.yaml", old, "{tensor: norm.weight, name: net.norm, identity: true}"
    )
    error = refused_together(folder)
    assert error.message == "'norm.weight' is no vocabulary map or mask, so it has no identity"
    assert str(error.where).startswith(f"{folder}/layout.yaml:{line}:")


@pytest.mark.parametrize(
    "line",
    [
        "also_shapes: [[1, 1, H]]",  # of what?
        "shape: [1, H], also_shapes: [[H, 1]]",  # which of the two is it?
        "shape: [1, H], also_shapes: [[H], [H]]",
    ],
)
def test_further_shapes_are_told_by_their_dimensions(tmp_path: Path, line: str) -> None:
    old = "{tensor: norm.weight, name: net.norm, shape: [1, H]}"
    folder, _ = edited(tmp_path, "layout.yaml", old, f"{{tensor: norm.weight, name: net.norm, {line}}}")
    assert "'also_shapes' come with a 'shape'" in refused_together(folder).message


def test_the_names_in_further_shapes_are_looked_at(tmp_path: Path) -> None:
    old = "{tensor: norm.weight, name: net.norm, shape: [1, H]}"
    new = "{tensor: norm.weight, name: net.norm, shape: [1, H], also_shapes: [[HH]]}"
    folder, line = edited(tmp_path, "layout.yaml", old, new)
    error = refused_together(folder)
    assert "HH" in error.message
    assert str(error.where).startswith(f"{folder}/layout.yaml:{line}:")


@pytest.mark.parametrize("key", ["fixed", "default"])
def test_a_value_in_a_schema_is_one_that_the_fact_can_have(tmp_path: Path, key: str) -> None:
    folder, line = edited(tmp_path, "layout.yaml", "    fixed: false\n", f"    at: odd.x\n    {key}: 3\n")
    error = refused_together(folder)
    assert error.message == f"{key} of norm_output is 3, not true or false"
    assert str(error.where).startswith(f"{folder}/layout.yaml:{line + 1}:")


def test_what_a_schema_computes_is_one_that_the_fact_can_have(tmp_path: Path) -> None:
    """The kind of an expression shows only with a drafter; a fault of the schema then, not of ours."""
    folder, _ = edited(tmp_path, "layout.yaml", "    fixed: false\n", "    fixed: =1 + 1\n")
    assert checked(folder / "layout.yaml", [folder]).findings == ()
    source = build(tmp_path / "in", "vllm")
    convert(source, tmp_path / "odd", to="oddfellow", target_arch="LlamaForCausalLM", schema_path=[STRANGER])
    with pytest.raises(SchemaError) as caught:
        inspect(tmp_path / "odd", schema_path=[folder])
    assert "norm_output is 2, not true or false" in caught.value.message
