"""The core by itself: its stress test, and how it comes with the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dream._errors import NotInstalled
from dream.shared_memory import failures, groups, library

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
COMPILER = shutil.which("c++") or shutil.which("g++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert COMPILER is not None
    program = tmp_path_factory.mktemp("stress") / "stress"
    sources = [*NATIVE.glob("*.cpp"), Path(__file__).with_name("stress.cpp")]
    command = [COMPILER, "-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, *sources, "-pthread", "-o", program], check=True, timeout=600)
    return program


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_random_calls(stress: Path, how: str, ranks: int) -> None:
    done = subprocess.run(
        [stress, how, str(ranks), "2000", str(ranks)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_numbers_are_those_of_the_header() -> None:
    header = (NATIVE / "dream_shared.h").read_text()
    found = {name: int(number) for name, number in re.findall(r"DREAM_(\w+) = (\d+)", header)}
    tables = (
        failures.DTYPES,
        failures.OPERATIONS,
        {name: number for number, name in failures.KINDS.items()},
        {code.name: int(code) for code in failures.Code},
    )
    here = {name.upper(): number for table in tables for name, number in table.items()}
    assert here == found


def test_who_has_no_core_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    assert library.status().path is None
    assert "was not built" in library.status().why
    assert "pip install" in library.status().why
    monkeypatch.setenv("PATH", "")
    assert "there is no C++ compiler" in library.status().why


@needs_compiler
def test_a_core_of_another_version_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of one that was built before there was something to call, on every rank."""
    assert COMPILER is not None
    source, core = tmp_path / "old.cpp", tmp_path / "_core.so"
    names = library._FUNCTIONS.keys() - {"reduce_there"}
    source.write_text("".join(f'extern "C" void dream_shared_{name}() {{}}\n' for name in names))
    subprocess.run([COMPILER, "-shared", "-fPIC", source, "-o", core], check=True, timeout=60)
    monkeypatch.setattr(library, "_FOLDER", tmp_path)
    monkeypatch.setattr(groups, "library", library.library.__wrapped__)
    told = groups._own_words()["missing"]
    assert "one without dream_shared_reduce_there. Install dream again" in told
    with pytest.raises(NotInstalled, match="Received from rank 1: The native core is of another"):
        groups._check_told((0, 1), [groups._Told(1, [0]), groups._Told(2, [1], missing=told)])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "compiler", [pytest.param(COMPILER, marks=needs_compiler), "/there/is/none"]
)
def test_a_wheel_with_a_compiler_and_without(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is whole but for the core."""
    tree = tmp_path / "tree"
    kept = shutil.ignore_patterns(".*", "build", "*.egg-info", "*.so", "__pycache__", "tests")
    shutil.copytree(ROOT, tree, ignore=kept)
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, compiler)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w",
         str(tmp_path), str(tree)],
        check=True, timeout=600,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "dream/shared_memory/group.py" in names
    cores = [name for name in names if name.startswith("dream/shared_memory/_core")]
    assert len(cores) == (compiler == COMPILER)
