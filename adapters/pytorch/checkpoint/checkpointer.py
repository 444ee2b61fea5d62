"""What torch's models, optimizers and generators hold, whole and under the model's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.checkpoint.unkept import Unkept
from dream.adapters.pytorch.model_description.model import describe
from dream.adapters.pytorch.tensors import array_bytes, array_of
from dream.checkpoint import generators, layers
from dream.checkpoint.allotment import Wanted, every_array
from dream.checkpoint.array_files import check_arrays
from dream.checkpoint.checkpointer import Checkpointer, Named, Parts
from dream.checkpoint.content import (
    Arrays,
    OptimizerState,
    check_kind,
    check_names,
    named_in,
)

if TYPE_CHECKING:
    from dream.adapters.pytorch.parallel.base import Parallelism


@final
class TorchCheckpointer(Checkpointer):
    api = "torch"

    def __init__(self, parallelism: Parallelism) -> None:
        self._parallelism = parallelism

    def model(self, model: nn.Module, wanted: Wanted = every_array) -> Arrays:
        self._parallelism.reshard()
        return _wholes(model.state_dict(), wanted)

    def check_model(self, model: nn.Module, arrays: Arrays) -> None:
        check_arrays("weights", arrays, {n: tuple(t.shape) for n, t in model.state_dict().items()})

    @torch.no_grad()
    def set_model(self, model: nn.Module, arrays: Arrays) -> None:
        for name, tensor in model.state_dict().items():
            tensor.copy_(_laid_as(tensor, torch.from_numpy(arrays[name])))
        self._parallelism.loaded()

    def describe(self, model: nn.Module) -> layers.Plain:
        described = describe(model)
        names = {p.name: p.name for layer in described.layers for p in layer.parameters}
        return layers.to_plain(described, names)

    def optimizer(
        self, optimizer: Optimizer, models: Named, wanted: Wanted = every_array
    ) -> OptimizerState:
        names = _names(optimizer, models)
        tensors: dict[str, torch.Tensor] = {}
        numbers: dict[str, Any] = {}
        for parameter, name in names.items():
            for slot, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{name}/{slot}"] = value
                else:
                    numbers[f"{name}/{slot}"] = value
        groups = [
            {**_hyperparameters(group), "params": [names[p] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        arrays = _wholes(tensors, wanted)
        return OptimizerState(type(optimizer).__name__, arrays, numbers, groups)

    def check_optimizer(self, optimizer: Optimizer, models: Named, state: OptimizerState) -> None:
        check_kind(state.kind, type(optimizer).__name__)
        names = _names(optimizer, models)
        here = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
        check_names(
            "optimized parameters",
            [name for group in state.groups for name in group["params"]],
            [name for group in here for name in group],
        )
        if [len(group) for group in here] != [len(group["params"]) for group in state.groups]:
            raise ConfigurationError(
                "This checkpoint is of other groups of parameters. Received: groups of "
                f"{[len(group['params']) for group in state.groups]} in it, "
                f"{[len(group) for group in here]} here. Make them as they were."
            )

    @torch.no_grad()
    def set_optimizer(self, optimizer: Optimizer, models: Named, state: OptimizerState) -> None:
        names = _names(optimizer, models)
        packed: dict[int, dict[str, Any]] = {}
        slots = _by_parameter(state)
        for index, (parameter, name) in enumerate(names.items()):
            held = slots.get(name)
            if held:
                packed[index] = {slot: _as_slot(parameter, value) for slot, value in held.items()}
        places = {name: index for index, name in enumerate(names.values())}
        saved = {name: group for group in state.groups for name in group["params"]}
        groups = []
        for group in optimizer.param_groups:
            own = [names[parameter] for parameter in group["params"]]
            hyperparameters = {**_hyperparameters(group), **(saved[own[0]] if own else {})}
            groups.append({**hyperparameters, "params": [places[name] for name in own]})
        optimizer.load_state_dict({"state": packed, "param_groups": groups})

    def count_updates(self, optimizer: Optimizer, updated: Callable[[], None]) -> None:
        optimizer.register_step_post_hook(lambda *_: updated())

    def unkept(self, parts: Parts) -> Callable[[], list[str]]:
        return Unkept(parts).names

    def random(self, models: Named) -> dict[str, Any]:
        del models  # torch's layers draw from its one generator
        state = {**generators.state(), "torch": _bytes()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
        return state

    def set_random(self, state: Mapping[str, Any], models: Named) -> None:
        del models
        generators.restore(state)
        if "torch" in state:
            torch.set_rng_state(_from_bytes(state["torch"]))
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(_from_bytes(state["cuda"]))


def _bytes() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _from_bytes(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _names(optimizer: Optimizer, models: Named) -> dict[torch.Tensor, str]:
    """Return each parameter that an optimizer steps, in its order, with its name in the model."""
    known: dict[torch.Tensor, str] = {}
    for key, model in models.items():
        for name, parameter in model.named_parameters():
            known.setdefault(parameter, named_in(key, name))
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    unknown = [tuple(parameter.shape) for parameter in stepped if parameter not in known]
    if unknown:
        raise ConfigurationError(
            "An optimizer's state is kept by the names of its model's parameters. Received: a "
            f"parameter of shape {unknown[0]} that no model here has. Give every model that the "
            "optimizer steps, as a dict of names where there are several."
        )
    return {parameter: known[parameter] for parameter in stepped}


def _hyperparameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.item() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _by_parameter(state: OptimizerState) -> dict[str, dict[str, Any]]:
    slots: dict[str, dict[str, Any]] = {}
    for key, value in (*state.arrays.items(), *state.numbers.items()):
        name, _, slot = key.rpartition("/")
        slots.setdefault(name, {})[slot] = value
    return slots


def _as_slot(parameter: torch.Tensor, value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    whole = torch.from_numpy(value)
    return _laid_as(parameter, whole) if whole.shape == parameter.shape else whole


def _wholes(tensors: Mapping[str, torch.Tensor], wanted: Wanted) -> dict[str, NDArray[Any]]:
    """Return copies of those that are wanted. Every rank takes part in making each whole."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in tensors.items():
        gather: Callable[[], torch.Tensor] | None = getattr(value, "full_tensor", None)
        whole = value if gather is None else gather()
        _check_kept(name, whole)
        if wanted(name, array_bytes(whole)):
            arrays[name] = array_of(whole)
    return arrays


def _check_kept(name: str, whole: torch.Tensor) -> None:
    """Refuse what no array can hold, on every rank: one alone will write it."""
    try:
        array_of(torch.empty(0, dtype=whole.dtype, layout=whole.layout))
    except (TypeError, RuntimeError) as error:
        raise Unsupported(
            f"A checkpoint holds arrays of numbers. Received: {name!r}, a tensor of {whole.dtype}, "
            f"{whole.layout}. Keep it out of the model's state, or dense and in another type."
        ) from error


def _laid_as(like: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return `whole` spread over the ranks as `like` is: every rank has all of it."""
    if not hasattr(like, "full_tensor"):
        return whole
    from torch.distributed.tensor import DTensor, distribute_tensor  # slow to come

    assert isinstance(like, DTensor)
    whole = whole.to(like.device)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)
