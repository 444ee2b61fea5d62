"""What is private in torch is named in one file, and works; torch's classes are changed in one."""

from __future__ import annotations

import ast
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dream.adapters.pytorch.parallel import _private

HERE = Path(_private.__file__).parent
FOLDERS = ("sharding", "fsdp", "tensor", "pipeline")
FILES = [
    *(file for folder in FOLDERS for file in sorted((HERE / folder).glob("*.py"))),
    *(HERE / name for name in ("inner_calls.py", "layers.py", "layer_segments.py")),
]
Pair = namedtuple("Pair", "left right")


def nodes(file: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(file.read_text()))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
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
    assert not changing or file.name == "hooks.py", changing


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _replaces(call: ast.Call) -> bool:
    """Tell `patches.replace(owner, name, value)` from a string's or a dataclass's."""
    return (
        isinstance(call.func, ast.Attribute) and call.func.attr == "replace" and len(call.args) == 3
    )


def test_structures_are_taken_apart_and_put_together() -> None:
    for value in ([1, 2], (1, 2), {"a": 1, "b": 2}, OrderedDict(a=1)):
        parts = _private.structure_of(value)
        assert parts is not None
        assert parts[0] in _private.structure_kinds()
        assert _private.structure_made(*parts) == value
    assert _private.structure_of(3) is None
    assert _private.is_named_tuple(Pair(1, 2))
    assert not _private.is_named_tuple((1, 2))


def test_what_is_asked_of_tensors_and_of_a_backward_pass() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert _private.is_view(x.view(6))
    made = _private.changeable(x.view(3, 2) * 2)
    made.add_(1.0)
    assert not _private.is_view(made)
    seen: list[bool] = []
    x.register_hook(lambda _: _private.after_backward(lambda: seen.append(x.grad is not None)))
    x.sum().backward()
    assert seen == [True]


def test_no_mode_sees_functions_inside() -> None:
    names = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        F.relu(torch.ones(2))
        before = len(names)
        with _private.functions_unseen():
            F.relu(torch.ones(2))
    assert 0 < before == len(names)


def test_what_is_asked_of_modules() -> None:
    layer = nn.Linear(2, 2)
    hook = lambda *_: None  # noqa: E731
    assert not _private.has_hooks(layer)
    layer.register_forward_hook(hook)
    layer.register_state_dict_post_hook(hook)
    assert _private.has_hooks(layer)
    assert _private.has_state_dict_hook(layer, hook)
    _private.clear_hooks(layer)
    assert not _private.has_hooks(layer)
    tied = nn.Module()
    tied.one = tied.two = nn.Parameter(torch.ones(1))
    tied.register_buffer("held", torch.ones(1))
    assert [name for name, _ in _private.own_parameters(tied)] == ["one", "two"]
    assert [name for name, _ in _private.own_buffers(tied)] == ["held"]
    stack = nn.Sequential(layer)
    assert not [*_private.without_children(stack).children()]
    assert [*stack.children()] == [layer]


def test_first_values_are_those_of_constructors() -> None:
    torch.manual_seed(3)
    right = nn.MultiheadAttention(8, 2)
    other = nn.MultiheadAttention(8, 2)
    torch.manual_seed(3)
    _private.attention_reset(other)
    assert all(
        torch.equal(a, b) for a, b in zip(right.parameters(), other.parameters(), strict=True)
    )


def test_layers_that_normalise_over_a_batch() -> None:
    assert _private.normalises_batches(nn.BatchNorm1d(2))
    assert _private.normalises_batches(nn.InstanceNorm1d(2, track_running_stats=True))
    assert not _private.normalises_batches(nn.InstanceNorm1d(2))
    assert not _private.normalises_batches(nn.LayerNorm(2))
    encoder = nn.TransformerEncoderLayer(4, 2)
    _private.unfused(encoder)
    assert encoder.activation_relu_or_gelu == 0
