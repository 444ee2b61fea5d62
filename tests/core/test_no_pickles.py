"""Where a pickle is read: in a short list of files, none of which reads from a socket."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = {
    # `dream.launch`: between a parent and its children, through files in a folder of mode 0700;
    # on="ray" over Ray's own transport, which is made of pickles
    "dream/launch/child.py",
    "dream/launch/function.py",
    # `dream port-check`, `dream plan`: between a parent and its children, through a folder of
    # mode 0700
    "dream/tools/model_process.py",
    # torch.load itself, made to wait for rank 0's file; what it reads is the user's
    "adapters/pytorch/hooks.py",
    # `dream checkpoint convert`: a .pt file, with weights_only=True
    "adapters/pytorch/tools/convert.py",
    # written, and to nowhere: what torch.save would come to that is in shards
    "adapters/pytorch/parallel/sharding/saving.py",
    # names of packages, of which none is imported
    "dream/tools/support.py",
    "adapters/horovod/_tools.py",
}
MODULES = ("pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib")
CALLS = ("torch.load", "multiprocessing.connection", "torch.serialization.load")
OBJECTS = ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list",
           "send_object_list", "recv_object_list")  # fmt: skip
"""torch.distributed's own, which unpickle; dream's communicator has methods of like names."""


def found(source: str) -> list[str]:
    """Lines that import or call what reads pickles."""
    told = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        else:
            continue
        told += [f"line {node.lineno}: {name}" for name in names if _reads_pickles(name)]
    return told


def _reads_pickles(name: str) -> bool:
    module, _, last = name.rpartition(".")
    if name.partition(".")[0] in MODULES or name in CALLS:
        return True
    return last in OBJECTS and module.endswith(("distributed", "distributed_c10d"))


def files() -> list[str]:
    rooms = (ROOT / "dream", ROOT / "adapters")
    return sorted(str(f.relative_to(ROOT)) for room in rooms for f in room.rglob("*.py"))


def test_pickles_are_read_in_the_listed_files_alone() -> None:
    told = {file: found((ROOT / file).read_text()) for file in files()}
    strange = {file: lines for file, lines in told.items() if lines and file not in ALLOWED}
    assert not strange


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import torch\ntorch.load(x)",
        "from torch import load", "import cloudpickle as c", "from torch import distributed\n"
        "distributed.broadcast_object_list(x)", "def f():\n    import _pickle, pickle",
    ],
)  # fmt: skip
def test_what_reads_pickles_is_seen(source: str) -> None:
    assert found(source)


def test_nothing_else_is() -> None:
    assert not found("ranks.all_gather_object(1)\nimport json\nnumpy.load(x, allow_pickle=False)")


def test_numpys_files_are_read_without_pickles() -> None:
    for file in files():
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                wanted = node.arg == "weights_only"
                assert isinstance(node.value, ast.Constant), file
                assert node.value.value is wanted, f"{file}:{node.value.lineno}"
