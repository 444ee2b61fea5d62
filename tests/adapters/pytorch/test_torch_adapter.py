"""There is one adapter, and what it stands on imports nothing of what stands on it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import dream
from dream.adapters.pytorch import adapter
from dream.adapters.pytorch.errors import explain

ADAPTER = Path(adapter.__file__).parent
LEFT = ("parallel/parameter_server/adapter.py",)
"""An adapter of its own, which is yet to become a `Parallelism`."""


def test_there_is_one_adapter() -> None:
    found = {
        path.relative_to(ADAPTER).as_posix(): node.name
        for path in ADAPTER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base) in ("Adapter", "Asynchronous") for base in node.bases)
    }
    assert {k: v for k, v in found.items() if not k.startswith(LEFT)} == {
        "adapter.py": "TorchAdapter"
    }


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_error_of_a_gpu_that_is_not_here_says_what_to_write() -> None:
    with (
        pytest.raises((AssertionError, RuntimeError)) as caught,
        dream.strategy("single", framework="torch"),
    ):
        torch.ones(1).cuda()
    assert "Write .to(device) in place of .cuda()" in caught.value.__notes__[0]


def test_imports_form_no_circle() -> None:
    """Imports that are for types only are none."""
    prefix = "dream.adapters.pytorch."
    modules = {path: _module(path) for path in ADAPTER.rglob("*.py")}
    imports = {
        module: {name for name in _imported(path, prefix) if name in modules.values()}
        for path, module in modules.items()
    }
    while free := [module for module, needed in imports.items() if not needed & imports.keys()]:
        for module in free:
            del imports[module]
    assert sorted(imports) == []


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ADAPTER).with_suffix("").parts)
    return "dream.adapters.pytorch." + name.removesuffix(".__init__")


def _imported(path: Path, prefix: str) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:  # those inside functions are made on use
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(prefix):
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found - {_module(path)}


def test_an_error_about_parts_of_parameters_says_what_to_write() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        part = distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)])
        with pytest.raises(RuntimeError) as raised, dream.strategy("single", framework="torch"):
            _ = torch.ones(2, 2) @ part
    finally:
        torch.distributed.destroy_process_group()
    assert "zero=1" in "".join(raised.value.__notes__)


@pytest.mark.parametrize(
    ("rank", "noted"),
    [("in forward, in step", True), ("reading input, in __getitem__", False)],
)
def test_an_absent_rank_is_told_of_uneven_loops_unless_it_is_only_slow(
    rank: str, noted: bool
) -> None:
    said = f"Rank 1 did not come to backward() within 4 s. Received: rank 1 is alive, {rank}."
    error = dream.Desynchronized(said)
    explain(error)
    assert any("once for each sample" in note for note in getattr(error, "__notes__", ())) == noted
