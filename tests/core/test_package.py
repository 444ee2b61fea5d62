"""What the package promises as a whole: names, laziness, arrows, and a whole wheel."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dream

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"torch", "tensorflow", "keras", "horovod"}


def test_the_public_names_are_these() -> None:
    assert sorted(dream.__all__) == [
        "CheckpointError",
        "Communicator",
        "ConfigurationError",
        "Desynchronized",
        "DreamError",
        "Handle",
        "NotInstalled",
        "Strategy",
        "Topology",
        "Unsupported",
        "WorkerFailed",
        "communicator",
        "current",
        "launch",
        "port_check",
        "rank_zero_first",
        "strategy",
    ]
    for name in dream.__all__:
        assert callable(getattr(dream, name))


@pytest.mark.parametrize("module", ["dream", "dream.cli"])
def test_importing_loads_no_framework(module: str) -> None:
    heavy = sorted(FRAMEWORKS | {"numpy"})
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert done.stdout.strip() == "[]", done.stderr


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_frameworks_are_imported_in_their_own_rooms_only() -> None:
    allowed = {
        "pytorch": {"torch", "keras"},
        "tensorflow": {"tensorflow", "keras"},
        "keras": {"keras"},
        "horovod": {"torch", "tensorflow", "horovod"},
        "shared_memory": {"torch", "tensorflow"},
    }
    for path in (ROOT / "dream").rglob("*.py"):
        assert not {name.partition(".")[0] for name in imports(path)} & FRAMEWORKS, path
        assert not any(name.startswith("dream.adapters") for name in imports(path)), path
    for room, own in allowed.items():
        for path in (ROOT / "adapters" / room).rglob("*.py"):
            foreign = {name.partition(".")[0] for name in imports(path)} & FRAMEWORKS - own
            assert not foreign, path


@pytest.mark.parametrize("folder", ["benchmarks", "examples"])
def test_what_is_imported_beside_the_package_is_there(folder: str) -> None:
    """No test runs the benchmarks; what they take from dream may have moved."""
    for path in (ROOT / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dream"):
                for name in node.names:
                    assert _is_there(str(node.module), name.name), f"{path.name}: {name.name}"


def _is_there(module: str, name: str) -> bool:
    """Without importing it, or a framework."""
    file = _file(module)
    return _file(f"{module}.{name}") is not None or (
        file is not None and name in {*_assigned(ast.parse(file.read_text()))}
    )


def _file(module: str) -> Path | None:
    place = ROOT / module.replace("dream.adapters", "adapters").replace(".", "/")
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file for file in files if file.exists()), None)


def _assigned(tree: ast.Module) -> Iterator[str]:
    """The names that a module has."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (name.asname or name.name for name in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_only_the_cluster_and_the_launcher_touch_the_environment() -> None:
    for folder in ("dream", "adapters"):
        for path in (ROOT / folder).rglob("*.py"):
            if not {"cluster", "launch"} & set(path.parts):
                assert "os.environ" not in path.read_text(), path


def test_every_folder_of_modules_is_a_package() -> None:
    """setup.py finds packages; a folder without `__init__.py` would be missing from the wheel."""
    for top in ("dream", "adapters"):
        for path in (ROOT / top).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


def test_adapters_refuse_their_bare_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import adapters"],
        cwd=ROOT, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert "dream.adapters" in done.stderr


def test_no_two_files_of_tests_share_a_name() -> None:
    """pytest imports them by their bare names, so `make quick` could not collect both."""
    found = (ROOT / "tests").rglob("*.py")
    scripts = [ROOT / "tests" / "strangers" / kind for kind in ("torch", "keras")]  # not imported
    names = [p.name for p in found if p.name != "conftest.py" and p.parent not in scripts]
    assert not {name for name in names if names.count(name) > 1}


def test_a_checkout_that_is_not_installed_says_so(tmp_path: Path) -> None:
    """The adapters come from beside the core, by an install."""
    shutil.copytree(ROOT / "dream", tmp_path / "dream")
    code = (
        "import sys\n"
        "sys.meta_path = [f for f in sys.meta_path if 'ditable' not in repr(f)]\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from dream.cli import main\n"
        "sys.argv[1:] = ['strategies']\n"
        "main()\n"
    )
    run = [sys.executable, "-P", "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, timeout=500)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "dream.adapters is not there" in done.stderr
