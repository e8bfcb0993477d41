"""What a user installs: the wheel and the sdist carry the schemas, and the command works from either."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "schemas"
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
KINDS = ("wheel", "wheel-from-sdist", "sdist")


def run(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that must succeed; Python's own variables are not handed on."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"{' '.join(map(str, command))}\nexited {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def schema_names() -> set[str]:
    """The algorithms that have layouts, and those layouts."""
    layouts = list(SCHEMAS.glob("*/layouts/*.yaml"))
    return {path.stem for path in layouts} | {path.parents[1].name for path in layouts}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each kind. ``build`` without options makes the sdist, and then the wheel out of that sdist."""
    direct, chained = tmp_path_factory.mktemp("direct"), tmp_path_factory.mktemp("chained")
    build = (sys.executable, "-m", "build", "--no-isolation")
    run(*build, "--wheel", "--outdir", direct, ROOT, cwd=direct)
    run(*build, "--outdir", chained, ROOT, cwd=chained)
    return {
        "wheel": next(direct.glob("*.whl")),
        "wheel-from-sdist": next(chained.glob("*.whl")),
        "sdist": next(chained.glob("*.tar.gz")),
    }


@pytest.fixture(scope="module", params=KINDS)
def installed(
    request: pytest.FixtureRequest, distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder outside of the checkout; in its ``venv``, ckptmorph installed from one distribution."""
    home = tmp_path_factory.mktemp(f"installed-{request.param}")
    venv.create(home / "venv", with_pip=False)
    python = home / "venv" / SCRIPTS / "python"
    borrow_dependencies(python, cwd=home)
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", *options, distributions[request.param], cwd=home)
    yield home


def borrow_dependencies(python: Path, cwd: Path) -> None:
    """Let an environment import our own dependencies, after its own packages.

    A folder named in a ``.pth`` file is put at the end of the path, and ``.pth`` files inside of that folder
    are not read: an editable install of ckptmorph next to our dependencies stays out of sight.
    """
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=cwd).strip()
    ours = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    assert ours, f"no folder of installed packages on {sys.path}"
    Path(own, "borrowed.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")


def wheel_names(path: Path) -> list[PurePosixPath]:
    with zipfile.ZipFile(path) as archive:
        return [PurePosixPath(name) for name in archive.namelist()]


@pytest.mark.parametrize("kind", ["wheel", "wheel-from-sdist"])
def test_wheel_carries_the_package_and_every_schema_and_nothing_else(
    kind: str, distributions: dict[str, Path]
) -> None:
    names = wheel_names(distributions[kind])
    inside = PurePosixPath("ckptmorph/_schemas")
    carried = {name.relative_to(inside).as_posix() for name in names if name.is_relative_to(inside)}
    assert carried == files_below(SCHEMAS)
    version = distributions[kind].name.split("-")[1]
    assert {name.parts[0] for name in names} == {"ckptmorph", f"ckptmorph-{version}.dist-info"}
    assert PurePosixPath(f"ckptmorph-{version}.dist-info/licenses/LICENSE") in names


def test_both_ways_to_a_wheel_give_the_same_files(distributions: dict[str, Path]) -> None:
    direct, chained = distributions["wheel"], distributions["wheel-from-sdist"]
    assert sorted(wheel_names(direct)) == sorted(wheel_names(chained))


def test_sdist_carries_every_schema_and_what_a_packager_needs(distributions: dict[str, Path]) -> None:
    with tarfile.open(distributions["sdist"]) as archive:
        names = {PurePosixPath(member.name) for member in archive if member.isfile()}
    relative = {PurePosixPath(*name.parts[1:]).as_posix() for name in names}
    assert {f"schemas/{name}" for name in files_below(SCHEMAS)} <= relative
    assert {"pyproject.toml", "README.md", "LICENSE", "Makefile", "constraints.txt"} <= relative
    strays = {name for name in relative if re.search(r"(^|/)(\.venv|__pycache__|\.[a-z]+_cache)/", name)}
    assert not strays


def test_the_installed_copy_is_the_one_that_runs(installed: Path) -> None:
    python = installed / "venv" / SCRIPTS / "python"
    origin = run(python, "-c", "import ckptmorph; print(ckptmorph.__file__)", cwd=installed).strip()
    assert Path(origin).resolve().is_relative_to((installed / "venv").resolve())
    paths = json.loads(run(python, "-c", "import json, sys; print(json.dumps(sys.path))", cwd=installed))
    assert str(ROOT) not in paths, "the editable install of the outer environment leaks into this one"


def test_schemas_list_names_every_layout(installed: Path) -> None:
    text = run(installed / "venv" / SCRIPTS / "ckptmorph", "schemas", "list", cwd=installed)
    names = schema_names()
    assert names
    assert names <= words(text)


def test_schemas_list_as_json_names_every_layout(installed: Path) -> None:
    text = run(installed / "venv" / SCRIPTS / "ckptmorph", "schemas", "list", "--json", cwd=installed)
    names = schema_names()
    assert names
    assert names <= words(json.dumps(json.loads(text), ensure_ascii=False))


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w.+-]+", text))
