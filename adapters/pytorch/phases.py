"""What part of training a Python stack is in, by torch's own files and functions."""

from __future__ import annotations

from pathlib import Path

import torch

from dream.stall.phases import Phase, PhaseRule

_TORCH, _OWN = Path(torch.__file__).parent, Path(__file__).parent


def rules() -> list[PhaseRule]:
    """Say what part of training a Python stack in torch's files is in."""
    calls = ("_wrapped_call_impl", "_call_impl", "__call__")
    return [
        _within(_TORCH, "utils/data/dataloader.py", Phase.INPUT, "__next__", "__iter__"),
        _within(_OWN, "data/", Phase.INPUT, "__next__", "iterate"),
        _within(_TORCH, "nn/modules/module.py", Phase.FORWARD, *calls),
        _within(_TORCH, "nn/functional.py", Phase.FORWARD),
        _within(_TORCH, "_tensor.py", Phase.BACKWARD, "backward"),
        _within(_TORCH, "autograd/__init__.py", Phase.BACKWARD, "backward", "grad"),
        _within(_TORCH, "optim/", Phase.OPTIMIZER),
        _within(_TORCH, "nn/utils/clip_grad.py", Phase.OPTIMIZER),
        _within(_TORCH, "_dynamo/convert_frame.py", Phase.COMPILING),
        _within(_TORCH, "_inductor/compile_fx.py", Phase.COMPILING),
        _within(_TORCH, "serialization.py", Phase.WRITING, "save"),
        _within(_TORCH, "serialization.py", Phase.LOADING, "load"),
        _within(_TORCH, "distributed/checkpoint/", Phase.WRITING, "save", "async_save"),
        _within(_TORCH, "distributed/checkpoint/", Phase.LOADING, "load"),
        _within(_TORCH, "distributed/distributed_c10d.py", Phase.COMMUNICATION),
        _within(_OWN, "parallel/pipeline/", Phase.STEP, "step", "forward_backward"),
        _within(_OWN, "evaluate.py", Phase.EVALUATION),
    ]


def _within(folder: Path, name: str, phase: Phase, *functions: str) -> PhaseRule:
    return PhaseRule(f"{folder}/{name}", phase, functions)
