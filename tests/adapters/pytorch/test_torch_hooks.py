"""What changes while a block is open: once each, by hooks.py alone, and back afterwards."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader

from dream.adapters.pytorch import hooks
from dream.adapters.pytorch.hooks import DrawPatches, Hooks
from dream.adapters.pytorch.randomness.operations import standing_for

ADAPTER = Path(hooks.__file__).parent
LEFT = {"parallel/parameter_server": 3, "tools": 12}
"""How often folders that are yet to come assign to torch. These numbers only shrink."""


def test_observers_are_told_in_their_order() -> None:
    told: list[str] = []
    watching = Hooks()
    watching.made("module", lambda made: told.append(f"after {type(made).__name__}"))
    watching.making("module", lambda made: told.append(f"before {type(made).__name__}"))
    watching.made("optimizer", lambda made: told.append(f"{len(made.param_groups)} group"))
    watching.made_of("loader", lambda _, given: told.append(f"batch_size {given['batch_size']}"))
    original = nn.Module.__init__
    watching.open()
    SGD(nn.Linear(1, 1).parameters(), 0.1)
    DataLoader([1])
    watching.close()
    nn.Linear(1, 1)
    assert told == ["before Linear", "after Linear", "1 group", "batch_size 1"]
    assert nn.Module.__init__ is original


def test_wrappers_go_around_those_before_them() -> None:
    told: list[str] = []

    def wrapper(name: str) -> hooks.Wrap:
        def wrap(run: hooks.Wrap) -> hooks.Wrap:
            def wrapped(tensors: torch.Tensor, *args: object) -> None:
                told.append(name)
                run(tensors, *args)

            return wrapped

        return wrap

    watching = Hooks()
    watching.wrap("backward", wrapper("inner"))
    watching.wrap("backward", wrapper("outer"))
    original = torch.autograd.backward
    watching.open()
    torch.autograd.backward(torch.ones((), requires_grad=True))
    watching.close()
    assert told == ["outer", "inner"]
    assert torch.autograd.backward is original


def test_no_other_file_assigns_to_torch() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(ADAPTER.rglob("*.py")):
        place = path.relative_to(ADAPTER).as_posix()
        if place != "hooks.py":
            folder = next((name for name in LEFT if place.startswith(name)), "")
            found.setdefault(folder, []).extend(f"{place}: {what}" for what in _assigned(path))
    assert found.pop("") == []
    assert {
        folder: len(those) for folder, those in found.items() if len(those) > LEFT[folder]
    } == {}


def test_the_rule_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "torch.save = None\nsetattr(nn.Module, 'x', 1)\npatches.replace(torch, 'load', None)\n"
        "own.save = None\n"
    )
    assert len(_assigned(path)) == 3


def _assigned(path: Path) -> list[str]:
    """Assignments to what was imported from torch, by hand or through a call that is given it."""
    tree = ast.parse(path.read_text())
    torchs = {"torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            torchs |= {alias.asname or alias.name for alias in node.names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [
                ast.unparse(target)
                for target in targets
                if isinstance(target, ast.Attribute) and _root(target) in torchs
            ]
        elif isinstance(node, ast.Call) and node.args and _root(node.args[0]) in torchs:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else _root(node.func)
            if called in ("setattr", "replace", "change"):
                found.append(ast.unparse(node))
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_a_name_that_a_script_imported_has_every_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("a_script")
    script.keep = torch.save  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_script", script)
    plain, watching = torch.save, Hooks()
    for word in ("inner", "outer"):
        watching.wrap("save", lambda save, word=word: lambda: (word, save))
    watching.open()
    try:
        assert script.keep is torch.save
        outer, wrapped = script.keep()
        assert (outer, *wrapped()) == ("outer", "inner", plain)
    finally:
        watching.close()
    assert script.keep is torch.save is plain


def test_a_name_that_a_script_binds_anew_in_the_block_is_its_own_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of `from torch import *`, and `seed = 7` in the block."""
    script = ModuleType("script")
    vars(script).update(seed=torch.seed, rand=torch.rand)
    monkeypatch.setitem(sys.modules, "script", script)
    draws = DrawPatches(standing_for)
    draws.put(anew=True)
    assert vars(script)["rand"] is torch.rand
    vars(script)["seed"] = 7
    draws.take_back()
    assert vars(script)["seed"] == 7
    assert vars(script)["rand"] is torch.rand
