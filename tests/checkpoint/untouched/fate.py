"""What a script that is tested imports beside its own: it is killed there, once, at an update or in
an evaluation that the environment says."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

_OUT = os.environ["FATE_OUT"]
_KILLS = [int(x) for x in os.environ.get("FATE_UPDATES", "").split()]
_EVALUATIONS = [int(x) for x in os.environ.get("FATE_EVALUATIONS", "").split()]
_SLEEP = float(os.environ.get("FATE_SLEEP", "0"))
_MINE = os.environ.get("RANK", "0") == os.environ.get("FATE_RANK", "0")
_counted = {"update": 0, "evaluation": 0}


def _meets(kind: str, places: list[int]) -> None:
    """Killed once a kind and place, and not before something is saved."""
    _counted[kind] += 1
    at = _counted[kind]
    mark = Path(f"{_OUT}.killed.{kind}.{at}")
    if not _MINE or at not in places or mark.exists():
        return
    end = time.monotonic() + float(os.environ.get("FATE_WAIT", "20"))
    folder = Path(os.environ["DREAM_CHECKPOINT"])
    while not (folder / "latest").exists() and time.monotonic() < end:
        time.sleep(0.01)
    mark.touch()
    os.kill(os.getpid(), getattr(signal, os.environ.get("FATE_SIGNAL", "SIGKILL")))


def _updated(*_: Any) -> None:
    time.sleep(_SLEEP)
    _meets("update", _KILLS)


def _called(module: nn.Module, _: Any) -> None:
    if not torch.is_grad_enabled() and isinstance(module, nn.Linear):
        _meets("evaluation", _EVALUATIONS)


register_optimizer_step_post_hook(_updated)
nn.modules.module.register_module_forward_pre_hook(_called)


def tell(model: nn.Module, **figures: Any) -> None:
    """Write down what a training has come to."""
    import json

    import dream

    strategy = dream.current()
    assert strategy is not None
    state = strategy.full_state(model)
    if strategy.topology.rank == 0:
        weights = {name: value.tolist() for name, value in state.items()}
        Path(_OUT).write_text(json.dumps({"weights": weights, **figures}))
