"""Rules for the tree that no linter knows: what code may name, how long it may be, where it may print."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ckptmorph"
SCHEMAS = ROOT / "schemas"
PYTHON_FILES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES = 400

# Libraries, engines and their authors: names that belong into schemas only, even if no schema is named so.
FRAMEWORKS = frozenset(
    {
        *("angelslim", "automodel", "deepspec", "llama.cpp", "llamacpp", "lmdeploy", "modelopt", "nemo"),
        *("safeailab", "sglang", "specforge", "speculators", "tensorrt", "torchspec", "trtllm", "vllm"),
        "z-lab",
    }
)
# Names of schema files that are not the name of a framework (a file format, say). Give a reason for each.
NOT_FRAMEWORKS: frozenset[str] = frozenset()

# Folders at the top of somebody's machine. Only where a path starts: not within a URL or a relative path.
MACHINE_FOLDERS = ("work", "root")
MACHINE_PATH = re.compile(rf"(?<![\w.~$}})-])/(?:{'|'.join(MACHINE_FOLDERS)})/")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def framework_names() -> frozenset[str]:
    """The fixed list, and the names of all layouts and engines; an algorithm's name is no framework's."""
    files = [*SCHEMAS.glob("*/layouts/*"), *SCHEMAS.glob("*/engines/*")]
    algorithms = {path.name for path in SCHEMAS.iterdir() if path.is_dir()} if SCHEMAS.is_dir() else set()
    stems = {path.stem.lower() for path in files}
    return FRAMEWORKS | (stems - algorithms - NOT_FRAMEWORKS)


def naming(text: str, names: frozenset[str]) -> set[str]:
    """The names that a text mentions. Short ones must begin a word: ``mnemonic`` is no ``nemo``."""
    text = text.lower()
    return {name for name in names if re.search(name_pattern(name), text)}


def name_pattern(name: str) -> str:
    start = "" if len(name) > 4 else "(?<![a-z0-9])"
    end = "" if len(name) > 3 else "(?![a-z0-9])"
    return start + re.escape(name) + end


def test_no_python_file_names_a_framework() -> None:
    names = framework_names()
    offenders = [
        f"{relative(path)}:{number}: {', '.join(sorted(found))}"
        for path in PYTHON_FILES
        for number, line in enumerate([relative(path), *path.read_text("utf-8").splitlines()])
        if (found := naming(line, names))
    ]
    assert not offenders, "frameworks are data (schemas/), not code:\n" + "\n".join(offenders)


def test_the_search_for_names_finds_and_spares() -> None:
    assert naming("class SGLangReader: uses llama.cpp and nemo_adapter", FRAMEWORKS) == {
        "sglang",
        "llama.cpp",
        "nemo",
    }
    assert naming("a mnemonic about llamaXcpp", FRAMEWORKS) == set()


def test_no_file_of_the_package_is_long() -> None:
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    lengths = {relative(path): len(path.read_bytes().splitlines()) for path in files}
    too_long = {name: length for name, length in lengths.items() if length > MAX_LINES}
    assert not too_long, f"more than {MAX_LINES} lines: {too_long}"


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_prints_and_broad_handlers_only_at_the_boundary(path: Path) -> None:
    if path.is_relative_to(PACKAGE / "cli"):
        pytest.skip("the command line is the boundary")
    offences = boundary_offences(path.read_text("utf-8"))
    lines = [f"{relative(path)}:{number}: {what}" for number, what in offences]
    assert not lines, "\n".join(lines)


def boundary_offences(source: str) -> Iterator[tuple[int, str]]:
    """Calls of ``print``, and whatever swallows every exception, with their lines.

    A handler that ends in a bare ``raise`` swallows nothing: it tidies up, and the error goes on its way.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called = last_name(node.func)
            if isinstance(node.func, ast.Name) and called == "print":
                yield node.lineno, "print()"
            if called == "suppress" and any(catches_everything(argument) for argument in node.args):
                yield node.lineno, "suppresses every exception"
        if isinstance(node, ast.ExceptHandler) and catches_everything(node.type):
            last = node.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield node.lineno, "catches every exception"


def catches_everything(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    if isinstance(caught, ast.Tuple):
        return any(catches_everything(item) for item in caught.elts)
    return last_name(caught) in ("Exception", "BaseException")


def last_name(node: ast.expr) -> str | None:
    """``c`` of ``a.b.c``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "try:\n    x\nexcept:\n    pass",
        "try:\n    x\nexcept (OSError, Exception):\n    pass",
        "try:\n    x\nexcept BaseException as error:\n    raise Other from error",
        "with contextlib.suppress(Exception):\n    x",
    ],
)
def test_the_search_for_offences_finds(source: str) -> None:
    assert len(list(boundary_offences(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "log.print(1)",
        "try:\n    x\nexcept (OSError, ValueError):\n    pass",
        "try:\n    x\nexcept BaseException:\n    tidy()\n    raise",
        "with suppress(OSError):\n    x",
    ],
)
def test_the_search_for_offences_spares(source: str) -> None:
    assert not list(boundary_offences(source))


LOOKING = frozenset({"is_file", "is_dir", "exists", "stat", "lstat", "fstat", "statvfs"})
GUARDS = frozenset({"os_errors", "reading", "suppress"})


@pytest.mark.parametrize("path", PYTHON_FILES, ids=relative)
def test_whoever_looks_at_a_file_says_what_happens_when_that_fails(path: Path) -> None:
    """A disk that fails while a file is looked at is no fault of ours, and no "it is not there" either."""
    lines = [f"{relative(path)}:{number}" for number in unguarded_looks(path.read_text("utf-8"))]
    assert not lines, "use is_file, is_folder, mode_of or size_of of storage/files.py:\n" + "\n".join(lines)


def unguarded_looks(source: str) -> Iterator[int]:
    """Lines that ask the system about a file outside of anything that takes its OSError."""

    def visit(node: ast.AST, guarded: bool) -> Iterator[int]:
        if isinstance(node, ast.Call) and is_look(node) and not guarded:
            yield node.lineno
        if isinstance(node, ast.With) and any(is_guard(item.context_expr) for item in node.items):
            guarded = True
        if isinstance(node, ast.FunctionDef) and "OSError:" in (ast.get_docstring(node) or ""):
            guarded = True  # it says that it raises one
        takes = isinstance(node, ast.Try) and any("OSError" in ast.dump(h) for h in node.handlers)
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, guarded or (takes and name == "body"))

    return visit(ast.parse(source), False)


def is_look(call: ast.Call) -> bool:
    """Whether a call is that of ``os.stat(path)`` or ``path.is_file()``, whatever the path is called."""
    called = call.func
    of_os = isinstance(called, ast.Attribute) and last_name(called.value) == "os"
    return isinstance(called, ast.Attribute) and called.attr in LOOKING and (of_os or not call.args)


def is_guard(context: ast.expr) -> bool:
    return isinstance(context, ast.Call) and last_name(context.func) in GUARDS


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("os.stat(path)", True),
        ("if place.parent.is_file():\n    x", True),
        ("try:\n    x\nexcept OSError:\n    path.exists()", True),
        ("with os_errors(path, 'look at'):\n    os.stat(path)", False),
        ("try:\n    os.stat(path)\nexcept (ValueError, OSError):\n    x", False),
        ('def f(path):\n    """Look.\n\n    Raises:\n        OSError: x\n    """\n    os.lstat(path)', False),
        ("is_file(path)", False),
        ("tensor.exists(env)", False),
    ],
)
def test_the_search_for_looks_finds_and_spares(source: str, found: bool) -> None:
    assert bool(list(unguarded_looks(source))) is found


def files_of_the_repository() -> list[Path]:
    """What git tracks, and what it would track: new files that are not ignored."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    trusting = ["git", "-c", "safe.directory=*"]  # the checkout may belong to somebody else
    command = [*trusting, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    paths = [ROOT / name for name in listed.decode("utf-8").split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_file_mentions_a_folder_of_one_machine() -> None:
    offenders = []
    for path in files_of_the_repository():
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if MACHINE_PATH.search(line):
                offenders.append(f"{relative(path)}:{number}: {line.strip()[:120]}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("folder", MACHINE_FOLDERS)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /{}/x", True),
        ('"/{}/.cache"', True),
        ("file:///{}/x", True),
        ("https://example.org/{}/x", False),
        ("src/{}/x", False),
        ("$HOME/{}/x", False),
    ],
)
def test_the_search_for_machine_folders_finds_and_spares(folder: str, text: str, found: bool) -> None:
    assert bool(MACHINE_PATH.search(text.format(folder))) is found
