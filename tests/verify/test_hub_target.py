"""A target by its name on the Hub: a loopback server stands in for it, and counts what it gives away.

The client reads its address once, when it is imported. So each case is a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import UsageError
from ckptmorph.storage import remote
from tests.builders import build, build_target, floats, read_folder, write_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "example-org/tiny-target"


@dataclass
class Hub:
    """What the server holds, how it behaves, and what it was asked for."""

    root: Path
    address: str = ""
    ranges: bool = True
    gated: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    sent: int = 0


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name, _, rest = self.path.lstrip("/").partition("/resolve/")
            revision, _, file = rest.partition("/")
            if not rest:  # the client asks for a list of its own, once a day
                self.answer(404, b"", {})
                return
            hub.asked.append((f"{name}@{revision}/{file}", self.headers.get("Range")))
            path = hub.root / name / file
            if hub.gated:
                self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
            elif not (hub.root / name).is_dir():
                self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("main", "v1", COMMIT):
                self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            elif not path.is_file():
                self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            else:
                self.give(path.read_bytes())

        def give(self, data: bytes) -> None:
            said = self.headers.get("Range")
            if said is None or not hub.ranges:
                self.answer(200, data, {})
                return
            first, last = said.removeprefix("bytes=").split("-")
            part = data[int(first) : int(last) + 1]
            where = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            self.answer(206, part, {"Content-Range": where})

        def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "X-Repo-Commit": COMMIT, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            try:
                self.wfile.write(body)
                hub.sent += len(body)
            except OSError:
                self.close_connection = True  # the client had enough

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub(tmp_path / "hub")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    server.daemon_threads = True
    made.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return build(tmp_path / "drafter", "vllm", embed=True)


def verify(drafter: Path, target: str, address: str, *more: str, **env: str) -> tuple[int, dict[str, Any]]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HTTP", "http"))}
    home = drafter.parent / "hf-home"
    command = ["verify", str(drafter), "--for", "vllm", "--json", "--target", target, *more]
    done = subprocess.run(
        [sys.executable, "-m", "ckptmorph", *command],
        env={**kept, "HF_ENDPOINT": address, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", **env},
        capture_output=True,
        text=True,
        cwd=drafter.parent,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def serve(hub: Hub, drafter: Path, *, shards: int = 2, rows: int = 512) -> Path:
    """A target whose embedding is the drafter's, with much more beside it than may be fetched."""
    folder = build_target(hub.root / NAME, layers=36, vocab_size=max(rows, 512))
    said = json.loads((folder / "config.json").read_text())
    content = {
        "model.embed_tokens.weight": read_folder(drafter)["embed_tokens.weight"],
        "lm_head.weight": floats("another head", (rows, 64)),
        "model.layers.0.mlp.up_proj.weight": floats("bulk", (8192, 64)),
    }
    return write_folder(folder, content, said, shards=shards)


@pytest.mark.parametrize(("shards", "revision"), [(1, ""), (3, ""), (3, "@v1")])
def test_headers_and_samples_are_all_that_is_fetched(
    hub: Hub, drafter: Path, shards: int, revision: str
) -> None:
    folder = serve(hub, drafter, shards=shards)
    code, document = verify(drafter, NAME + revision, hub.address)
    assert code == 0
    assert NAME in document["target"] and COMMIT in document["target"] and "Hub" in document["target"]
    seen = {item["table"]: item for item in document["compared"]}
    assert (
        seen["embed_tokens"]["outcome"] == "equal"
        and seen["embed_tokens"]["looked"] == "sampled 64 of 512 rows"
    )
    assert seen["lm_head"]["outcome"] == "different" and "sampled 16 of 128 rows" in seen["lm_head"]["looked"]
    whole = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert hub.sent < 40_000 < whole / 20
    assert all(rng is not None for path, rng in hub.asked if path.endswith(".safetensors"))
    # The first answer names the commit, and everything else comes from it.
    assert hub.asked[0][0] == f"{NAME}@{revision.removeprefix('@') or 'main'}/config.json"
    assert {
        path.partition("/config")[0].partition("@")[2].partition("/")[0] for path, _ in hub.asked[1:]
    } == {COMMIT}
    # Of several files, only those that hold a table are looked at.
    opened = {path.rpartition("/")[2] for path, _ in hub.asked if path.endswith(".safetensors")}
    assert len(opened) == (1 if shards == 1 else 2)
    assert not list((drafter.parent / "hf-home").rglob("*.safetensors"))


def test_deep_reads_more_samples_of_a_repository_but_not_all(hub: Hub, drafter: Path) -> None:
    big = build(drafter.parent / "big", "vllm", embed=True, vocab=16384)
    serve(hub, big, rows=16384)
    code, document = verify(big, NAME, hub.address, "--deep")
    assert code == 0
    (embed,) = [item for item in document["compared"] if item["table"] == "embed_tokens"]
    assert embed["outcome"] == "equal" and embed["looked"] == "sampled 1024 of 16384 rows"
    assert hub.sent < 300_000


@pytest.mark.parametrize("shards", [1, 2])
def test_a_server_without_ranges_is_not_read_to_the_end(hub: Hub, drafter: Path, shards: int) -> None:
    serve(hub, drafter, shards=shards)
    hub.ranges = False
    code, document = verify(drafter, NAME, hub.address)
    assert code == 0
    assert {item["outcome"] for item in document["compared"]} == {"not-compared"}
    (said,) = {f["code"]: f for f in document["findings"] if f["severity"] == "warning"}.values()
    assert said["code"] == "target-weights-unreadable" and "byte ranges" in said["message"] and said["next"]


def test_a_folder_wins_over_a_repository(hub: Hub, drafter: Path) -> None:
    serve(hub, drafter)
    build_target(drafter.parent / NAME)
    code, document = verify(drafter, NAME, hub.address)
    assert code == 0 and document["target"] == f"folder {NAME}" and hub.asked == []


@pytest.mark.parametrize(
    ("name", "gated", "exit_code", "error", "words"),
    [
        ("example-org/none", False, 2, "no-target", "no repository of that name"),
        (f"{NAME}@nowhere", False, 2, "no-target", "no such revision"),
        (NAME, True, 3, "gated-target", "gated"),
    ],
)
def test_what_cannot_be_had_is_said(
    hub: Hub, drafter: Path, name: str, gated: bool, exit_code: int, error: str, words: str
) -> None:
    serve(hub, drafter)
    hub.gated = gated
    code, document = verify(drafter, name, hub.address)
    assert (code, document["error"]["code"]) == (exit_code, error)
    assert words in document["error"]["message"] and "--target" in document["error"]["next"]


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize("env", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_without_network_there_is_a_next_step(drafter: Path, env: dict[str, str]) -> None:
    code, document = verify(drafter, NAME, closed_port(), **env)
    assert (code, document["error"]["code"]) == (5, "hub-unreachable")
    assert NAME in document["error"]["message"] and "--target" in document["error"]["next"]


def cache(drafter: Path, folder: Path, files: str = "*") -> Path:
    """The folder as a snapshot in a Hub cache, with links into blobs."""
    home = drafter.parent / "hf-home" / "hub" / f"models--{NAME.replace('/', '--')}"
    snapshot = home / "snapshots" / COMMIT
    for place in (snapshot, home / "blobs", home / "refs"):
        place.mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    for number, path in enumerate(sorted(folder.glob(files))):
        blob = home / "blobs" / f"{number:040x}"
        shutil.copyfile(path, blob)
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


@pytest.mark.parametrize("shards", [1, 3])
def test_a_cached_snapshot_needs_no_network(hub: Hub, drafter: Path, shards: int) -> None:
    cache(drafter, serve(hub, drafter, shards=shards))
    code, document = verify(drafter, NAME, closed_port(), HF_HUB_OFFLINE="1")
    assert code == 0
    assert "cache" in document["target"] and COMMIT[:12] in document["target"]
    seen = {item["table"]: item for item in document["compared"]}
    assert seen["embed_tokens"]["outcome"] == "equal" and seen["embed_tokens"]["looked"] == "all 512 rows"


def test_a_cached_config_alone_still_tells_its_facts(hub: Hub, drafter: Path) -> None:
    cache(drafter, serve(hub, drafter), "config.json")
    code, document = verify(drafter, NAME, closed_port(), HF_HUB_OFFLINE="1")
    assert code == 0 and "only its config" in document["target"]
    assert {item["outcome"] for item in document["compared"]} == {"not-compared"}
    code, document = verify(drafter, NAME, hub.address)
    assert code == 0 and {item["outcome"] for item in document["compared"]} == {"equal", "different"}


def test_a_broken_answer_is_no_traceback(hub: Hub, drafter: Path) -> None:
    folder = serve(hub, drafter, shards=1)
    (folder / "model.safetensors").write_bytes(b"<html>sorry</html>" * 100)
    code, document = verify(drafter, NAME, hub.address)
    assert code == 0
    assert "target-weights-unreadable" in [f["code"] for f in document["findings"]]
    (folder / "config.json").write_text("[]")
    code, document = verify(drafter, NAME, hub.address)
    assert (code, document["error"]["code"]) == (3, "json-not-object")


@pytest.mark.parametrize(
    "name", ["nowhere", "a/b/c", "./a/b", "../x", "/a/b", "org/na--me", "org/x.git", "org/x@", ".org/x"]
)
def test_other_texts_are_paths(drafter: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub is not asked about them."""
    monkeypatch.setattr(remote, "cached", None)
    monkeypatch.setattr(remote, "HubWeights", None)
    with pytest.raises(UsageError) as caught:
        api.verify(drafter, engine="vllm", target=name)
    assert caught.value.code == "no-target" and caught.value.next


def test_map_values_stay_inside_the_targets_table(hub: Hub, tmp_path: Path) -> None:
    """A head that belongs to a larger vocabulary than the target's table is not compared by guess."""
    source = build(tmp_path / "drafter", "vllm")
    serve(hub, build(tmp_path / "with", "vllm", embed=True), rows=200)
    _, document = verify(source, NAME, hub.address)
    (head,) = document["compared"]
    assert head["outcome"] == "not-compared" and "map" in head["why"]
