"""An optimizer travels as its class's name and its numbers, and what comes is no code."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from dream import Unsupported
from dream._plain import Garbled
from dream.adapters.pytorch.parallel.parameter_server.optimizer import (
    TorchOptimizerSpec,
    TorchServerOptimizer,
    describe,
)
from dream.adapters.pytorch.tensors import dump, load

NAME = "torch.optim.sgd:SGD"


class Halving(SGD):
    """An optimizer of the script's own."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data *= group["lr"]


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def sent(optimizer: Optimizer) -> TorchServerOptimizer:
    """A server of all the optimizer's parameters."""
    owner = TorchServerOptimizer()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    data = describe(optimizer, type(optimizer), range(len(parameters)))
    values = torch.cat([p.detach().reshape(-1) for p in parameters]).numpy()
    owner.build(data, values)
    return owner


def test_an_optimizer_of_the_scripts_own_is_found_by_name() -> None:
    owner = sent(Halving([nn.Parameter(torch.ones(3))], lr=0.5))
    owner.step(np.zeros(3, np.float32), b"", None)
    np.testing.assert_array_equal(owner.values, np.full(3, 0.5, np.float32))


def test_state_and_settings_come_along() -> None:
    parameters = [nn.Parameter(torch.randn(2, 3)), nn.Parameter(torch.randn(4))]
    groups = [{"params": parameters[:1], "lr": 0.3}, {"params": parameters[1:]}]
    optimizer = AdamW(groups, betas=(0.8, 0.9))
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    owner = sent(optimizer)
    gradient = np.ones(10, np.float32)
    optimizer.step()
    owner.step(gradient, b"", None)
    wanted = torch.cat([p.detach().reshape(-1) for p in parameters]).numpy()
    np.testing.assert_array_equal(owner.values, wanted)
    there = load(owner.save())
    assert torch.equal(there[1]["exp_avg"], optimizer.state[parameters[1]]["exp_avg"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.complex64])
def test_tensors_come_back_as_they_were(dtype: torch.dtype) -> None:
    for made in (torch.ones(2, 3).T, torch.ones(()), torch.ones(0, 2)):
        tensor = made.to(dtype)
        back = load(dump({"a": (tensor,)}))["a"][0]
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)


@pytest.mark.parametrize("what", [lambda: 1, object(), torch.ones(2).to_sparse()])
def test_what_cannot_travel_is_refused_on_the_worker(what: Any) -> None:
    optimizer = Halving([nn.Parameter(torch.ones(3))], lr=0.5)
    optimizer.param_groups[0]["extra"] = what
    optimizer.state[optimizer.param_groups[0]["params"][0]] = {}
    with pytest.raises(Unsupported, match="Halving with something of type"):
        describe(optimizer, Halving, [0])


def hostile(**change: Any) -> bytes:
    fields = {
        "kind": NAME, "defaults": {}, "shapes": [(3,)], "settings": [{"lr": 0.1}], "groups": [[0]],
        "state": {},
    }  # fmt: skip
    return dump(tuple({**fields, **change}.values()))


def test_an_unknown_class_is_named_and_not_imported() -> None:
    sys.modules.pop("json.tool", None)
    for name in ("json.tool:Optimizer", "os:system", "builtins:eval", 3):
        with pytest.raises(Unsupported, match="before the block") as error:
            TorchServerOptimizer().build(hostile(kind=name), np.ones(3, np.float32))
        assert repr(name) in str(error.value)
    assert "json.tool" not in sys.modules


@pytest.mark.parametrize(
    "change",
    [
        {"shapes": [(1 << 50,)]}, {"shapes": [("3",)]}, {"groups": [[0, 0]]}, {"groups": [[1]]},
        {"groups": 3}, {"settings": []}, {"state": {7: {}}}, {"shapes": None},
    ],
)  # fmt: skip
def test_a_description_that_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Garbled):
        TorchOptimizerSpec.of(hostile(**change), 3)


def test_a_pickle_makes_nothing(tmp_path: Path) -> None:
    bomb = pickle.dumps(Bomb(tmp_path / "made"))
    torch.save(Bomb(tmp_path / "made"), tmp_path / "saved")
    owner = sent(SGD([nn.Parameter(torch.ones(3))], lr=0.5))
    for data in (bomb, (tmp_path / "saved").read_bytes()):
        for read in (owner.read_settings, owner.restore, load):
            with pytest.raises(Garbled):
                read(data)
        with pytest.raises(Garbled):
            owner.build(data, np.ones(3, np.float32))
    assert not (tmp_path / "made").exists()
