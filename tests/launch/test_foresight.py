"""What a script will import is read off its lines, and those of its own modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dream.launch.forks.foresight import IMPORTS, foresee, frameworks_of

CHILD = "child.py"


def written(folder: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return [CHILD, "script", str(folder / "train.py")]


def test_a_script_names_its_framework_on_a_line_of_its_own(tmp_path: Path) -> None:
    lines = "import sys\nfrom keras import layers\nnot_import = 'torch'\n# import tensorflow\n"
    command = written(tmp_path, {"train.py": lines})
    assert foresee(command, {}).modules == ("numpy", "dream", "keras")


def test_its_own_modules_name_it_too(tmp_path: Path) -> None:
    """By any path to them, and round in a circle."""
    files = {
        "train.py": "from parts import model",
        "parts/__init__.py": "from . import again",
        "parts/again.py": "",
        "parts/model.py": "from .deep import x",
        "parts/deep.py": "import train, torch",
        "other.py": "import tensorflow",
    }
    command = written(tmp_path, files)
    assert foresee(command, {}).modules == ("numpy", "dream", "torch")


def test_frameworks_of_a_file_that_a_tool_loads(tmp_path: Path) -> None:
    command = written(tmp_path, {"train.py": "import os, torch"})
    assert frameworks_of(command) == ["torch"]
    assert frameworks_of([CHILD, "script", str(tmp_path / "nothing.py")]) == []
    assert frameworks_of([CHILD, "module", "no_such_module"]) == []


def test_who_trains_needs_more(tmp_path: Path) -> None:
    command = written(tmp_path, {"train.py": "import torch"})
    assert "torch._dynamo" not in foresee(command, {}).modules
    assert "torch._dynamo" in foresee(command, {"DREAM_STRATEGY": "mirrored"}).modules
    command = written(tmp_path, {"train.py": "def main():\n    import dream, torch, torch.nn\n"})
    assert "torch._dynamo" in foresee(command, {}).modules


@pytest.mark.parametrize(
    ("lines", "backend", "brings"),
    [
        ("import keras\nkeras.utils.set_random_seed(1)", "torch", True),
        ("from keras.utils import set_random_seed", "torch", True),
        ("import keras\nkeras.utils.set_random_seed(1)", "tensorflow", False),
        ("import keras", "torch", False),
        ("import torch\ntorch.set_random_seed", "torch", False),
    ],
)
def test_keras_generators_are_seeded_with_tensorflow_too(
    lines: str, backend: str, brings: bool, tmp_path: Path
) -> None:
    """Where it is installed, on whatever backend."""
    command = written(tmp_path, {"train.py": lines})
    assert ("tensorflow" in foresee(command, {"KERAS_BACKEND": backend}).modules) == brings


def test_what_is_asked_for_counts_for_more_than_lines(tmp_path: Path) -> None:
    command = written(tmp_path, {"train.py": "import keras"})
    assert "torch" in foresee(command, {"DREAM_FRAMEWORK": "torch"}).modules
    both = {"DREAM_FRAMEWORK": "torch", "KERAS_BACKEND": "torch"}
    assert {"torch", "keras"} <= {*foresee(command, both).modules}
    of_torch = written(tmp_path, {"train.py": "import torch"})
    assert "keras" not in foresee(of_torch, both).modules
    assert foresee(command, {IMPORTS: "rich"}).modules == ("numpy", "dream", "rich")


def test_which_of_several_a_function_chooses_is_not_known(tmp_path: Path) -> None:
    chooses = "def a():\n    import torch\ndef b():\n    import tensorflow\n"
    assert foresee(written(tmp_path, {"train.py": chooses}), {}).modules == ()
    command = written(tmp_path, {"again.py": "", "train.py": chooses + "import keras"})
    assert foresee(command, {}).modules == ("numpy", "dream", "keras")


@pytest.mark.parametrize("text", ["import sys", "import torch (", None])
def test_of_others_nothing_is_known(text: str | None, tmp_path: Path) -> None:
    command = written(tmp_path, {"train.py": text or ""})
    if text is None:
        Path(command[2]).unlink()
    assert foresee(command, {}).modules == ()


def test_a_module_is_found_as_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, {"parts/run.py": "import torch", "parts/__main__.py": "import keras"})
    monkeypatch.chdir(tmp_path)
    assert "torch" in foresee([CHILD, "module", "parts.run"], {}).modules
    assert "keras" in foresee([CHILD, "module", "parts"], {}).modules
    assert foresee([CHILD, "module", "elsewhere"], {}).modules == ()


def test_a_function_comes_with_what_is_imported_here(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "tensorflow", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert foresee([CHILD, "function", "call", "result"], {}).modules == ()
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert "torch._dynamo" in foresee([CHILD, "function", "call", "result"], {}).modules


SETS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault("NEW", "1")
os.environ.setdefault("OLD", "1")
if "UNSET" not in os.environ:
    os.environ["UNSET"] = "1"
if "DREAMS" not in os.environ:
    os.environ["DREAMS"] = "1"
if os.environ["OTHER"] == os.getcwd():
    os.environ["UNKNOWN"] = os.getcwd()
import keras
os.environ["LATER"] = "1"
"""


def test_variables_are_read_off_too(tmp_path: Path) -> None:
    """Constants that are set before the framework is imported. The rank's own environment tells
    which there are already: it has more than the launcher's."""
    command = written(tmp_path, {"train.py": SETS})
    sets = {"KERAS_BACKEND": "torch", "NEW": "1", "UNSET": "1"}
    assert foresee(command, {"OLD": "0", "DREAMS": "0"}).sets == sets
