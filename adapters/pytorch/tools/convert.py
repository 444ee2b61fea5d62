"""A checkpoint of dream's from and to torch's own: a .pt file, and a folder of DCP's."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp

from dream._errors import ConfigurationError
from dream.adapters.pytorch.checkpoint.arrays import array_of
from dream.checkpoint.content import NAMES, Arrays, CheckpointContent, OptimizerState

_STEP, _MODEL, _OPTIMIZER = "step", "model", "optimizer"
_TORCH = "torch"


def write(checkpoint: CheckpointContent, destination: Path, _like: Path | None) -> None:
    """Write {"step", "names", "model", "optimizer"}: state dicts, the optimizer's by names."""
    content = {
        _STEP: checkpoint.step,
        NAMES: checkpoint.facts.get(NAMES, _TORCH),
        _MODEL: _one({name: _tensors(arrays) for name, arrays in checkpoint.models.items()}),
        _OPTIMIZER: _one({name: _packed(each) for name, each in checkpoint.optimizers.items()}),
    }
    if destination.suffix != ".dcp":
        torch.save(content, destination)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.save(content, Path(folder) / "all.pt")
        torch_save_to_dcp(Path(folder) / "all.pt", destination)


def read(source: Path, _like: Path | None) -> CheckpointContent:
    """Read what `write` has written, or a model's state dict."""
    if source.is_dir():
        with tempfile.TemporaryDirectory() as folder:
            dcp_to_torch_save(source, Path(folder) / "all.pt")
            content = torch.load(Path(folder) / "all.pt", weights_only=True, map_location="cpu")
    else:
        content = torch.load(source, weights_only=True, map_location="cpu")
    model = content.get(_MODEL, content)
    strange = [name for name, value in model.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise ConfigurationError(
            f"This is no model's state dict. Received: {source}, with {strange[0]!r}, a "
            f"{type(model[strange[0]]).__name__}. Save model.state_dict(), or a dict with it as "
            "'model'."
        )
    held = content.get(_OPTIMIZER)
    optimizers = {"": _unpacked(held)} if held and _by_name(held) else {}
    if held and not optimizers:
        print("The optimizer's state is left out: it is kept by numbers, not by names.")
    arrays = {name: array_of(value) for name, value in model.items()}
    step = int(content.get(_STEP, 0)) if _MODEL in content else 0
    facts = {NAMES: content.get(NAMES, _TORCH) if _MODEL in content else _TORCH}
    return CheckpointContent(step, {"": arrays}, optimizers, facts=facts)


def _one(parts: Mapping[str, Any]) -> Any:
    """One of a kind as it is; several by name."""
    return parts[""] if [*parts] == [""] else dict(parts)


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _packed(state: OptimizerState) -> dict[str, Any]:
    packed: dict[str, dict[str, Any]] = {}
    for key, value in (*_tensors(state.arrays).items(), *state.numbers.items()):
        name, _, slot = key.rpartition("/")
        packed.setdefault(name, {})[slot] = value
    groups = [dict(group) for group in state.groups]
    return {"kind": state.kind, "state": packed, "param_groups": groups}


def _by_name(held: Mapping[str, Any]) -> bool:
    return "kind" in held and all(isinstance(key, str) for key in held["state"])


def _unpacked(held: Mapping[str, Any]) -> OptimizerState:
    arrays, numbers = {}, {}
    for name, slots in held["state"].items():
        for slot, value in slots.items():
            if isinstance(value, torch.Tensor):
                arrays[f"{name}/{slot}"] = array_of(value)
            else:
                numbers[f"{name}/{slot}"] = value
    return OptimizerState(held["kind"], arrays, numbers, held["param_groups"])
