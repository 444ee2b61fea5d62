"""What is private in torch is named in one file, and works; torch's classes are changed in one."""

from __future__ import annotations

import ast
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from dream.adapters.pytorch import private

HERE = Path(private.__file__).parent / "parallel"
FOLDERS = ("sharding", "fsdp", "tensor", "pipeline")
FILES = [
    *(file for folder in FOLDERS for file in sorted((HERE / folder).glob("*.py"))),
    *(HERE / name for name in ("inner_calls.py", "layers.py", "layer_segments.py")),
]
Pair = namedtuple("Pair", "left right")


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text()))


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if file.name != "private.py"],  # of FSDP2's
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_no_other_file_names_what_is_private(file: Path) -> None:
    for node in nodes(file):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            assert isinstance(node.value, ast.Name), ast.unparse(node)
            assert node.value.id in ("self", "cls"), ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            assert not any(map(_is_private, names)), ast.unparse(node)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_torch_is_changed_in_one_file(file: Path) -> None:
    calls = [node for node in nodes(file) if isinstance(node, ast.Call)]
    changing = [ast.unparse(call) for call in calls if _replaces(call)]
    assert not changing


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _replaces(call: ast.Call) -> bool:
    """Tell `patches.replace(owner, name, value)` from a string's or a dataclass's."""
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr == "replace" and len(call.args) == 3
    )
