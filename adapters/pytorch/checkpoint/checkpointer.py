"""What torch's models, optimizers and generators hold, whole and under the model's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from dream._errors import ConfigurationError
from dream.adapters.pytorch.checkpoint.arrays import (
    Joined,
    array_of,
    gathered,
    laid_as,
    wholes,
    write_into,
)
from dream.adapters.pytorch.checkpoint.sharded_state import ShardedState
from dream.adapters.pytorch.checkpoint.unkept import Unkept
from dream.adapters.pytorch.model_description.model import describe
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.tensors import dtype_name
from dream.checkpoint import layers, replicas
from dream.checkpoint.checkpointer import Checkpointer, Named, Parts
from dream.checkpoint.content import (
    Arrays,
    CheckpointContent,
    OptimizerState,
    Replicas,
    check_kind,
    check_names,
    named_in,
)
from dream.checkpoint.storage.allotment import Wanted, every_array
from dream.checkpoint.storage.array_files import check_arrays, part_of, shape_of
from dream.data import generators

_FORKS = "forks"
"""How often ranks have begun to draw for themselves, each from the generator and this."""
_SCALE = "loss_scale"
"""In each group: a float16 training's, which the next step is made with."""


@final
class TorchCheckpointer(Checkpointer):
    api = "torch"

    def __init__(self, held: ShardedState) -> None:
        self._held = held
        self.writes = held.writes

    def model(self, model: nn.Module, wanted: Wanted = every_array) -> Arrays:
        self._held.reshard()
        state = {**model.state_dict(), **self._masters(model)}
        return wholes(state, wanted, self._held.owners(model), self._joined)

    @property
    def _joined(self) -> Joined:
        alone = self._held.stepping_alone
        return gathered if alone is None else alone.together

    def facts(self) -> dict[str, Any]:
        own = self._held
        ranks, copies = own.world.world_size, own.dealt.world_size
        mesh = {"data": own.replicas, "model": ranks // copies if ranks > copies else 1}
        return {"mesh": mesh, "precision": own.update_options.precision}

    def types(self, model: nn.Module) -> dict[str, str]:
        return {name: dtype_name(x.dtype) for name, x in model.state_dict().items()}

    def check_model(self, model: nn.Module, arrays: Arrays) -> None:
        self._held.loading()
        check_arrays("weights", arrays, {n: tuple(t.shape) for n, t in model.state_dict().items()})

    @torch.no_grad()
    def set_model(self, model: nn.Module, arrays: Arrays) -> None:
        masters = self._masters(model)
        for name, tensor in model.state_dict().items():
            if not tensor.is_meta:  # another rank's
                write_into(masters.get(name, tensor), name, arrays)
        for name, parameter in model.named_parameters():
            if name in masters:
                assert self._held.training.masters is not None
                self._held.training.masters.rounded(parameter)
        self._held.loaded()

    def _masters(self, model: nn.Module) -> dict[str, torch.Tensor]:
        """Return by name what optimizers step in place of parameters that are its roundings."""
        masters = self._held.training.masters
        if masters is None:
            return {}
        every = model.named_parameters(remove_duplicate=False)
        found = ((n, masters.current(p)) for n, p in every)
        return {name: master.detach() for name, master in found if master is not None}

    def describe(self, model: nn.Module) -> layers.Plain:
        described = describe(model)
        names = {p.name: p.name for layer in described.layers for p in layer.parameters}
        return layers.to_plain(described, names)

    def optimizer(
        self, optimizer: Optimizer, models: Named, wanted: Wanted = every_array
    ) -> OptimizerState:
        state = self._states(optimizer, models)
        tensors = {key: x for key, x in state.items() if isinstance(x, torch.Tensor)}
        numbers = {key: x for key, x in state.items() if key not in tensors}
        owners = self._exchange(tensors, numbers)
        groups = [
            {**_hyperparameters(group), "params": params}
            for group, params in zip(
                optimizer.param_groups, self._groups(optimizer, models), strict=True
            )
        ]
        if self._held.training.scaling is not None:
            groups = [
                {**group, _SCALE: self._held.training.scaling.state_dict()} for group in groups
            ]
        arrays = wholes(tensors, wanted, owners, self._joined)
        return OptimizerState(type(optimizer).__name__, arrays, numbers, groups)

    @staticmethod
    def _states(optimizer: Optimizer, models: Named) -> dict[str, Any]:
        """Return what this rank's optimizer holds, by PARAMETER/SLOT."""
        names = [*_names(optimizer, models).values()]
        return {
            f"{names[index]}/{slot}": value
            for index, entries in optimizer.state_dict()["state"].items()
            for slot, value in entries.items()
        }

    def _exchange(
        self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]
    ) -> dict[str, int]:
        """Add what other stages' ranks hold, tensors by name and shape alone; return whose each
        is."""
        own = {name: (tuple(x.shape), dtype_name(x.dtype)) for name, x in tensors.items()}
        owners: dict[str, int] = {}
        held = dict(tensors)
        tensors.clear()
        for owner, (told, plain) in self._held.told_by_stages((own, dict(numbers))):
            numbers.update(plain)
            for name, (shape, dtype) in told.items():
                if owner is not None:
                    owners[name] = owner
                if name in held:
                    tensors[name] = held[name]
                else:
                    tensors[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        return owners

    def _groups(self, optimizer: Optimizer, models: Named) -> list[list[str]]:
        """Return the names in each group of parameters, those of all stages."""
        names = _names(optimizer, models)
        own = [[names[p] for p in group["params"]] for group in optimizer.param_groups]
        told = [groups for _, groups in self._held.told_by_stages(own)]
        return [[name for part in parts for name in part] for parts in zip(*told, strict=True)]

    def check_optimizer(self, optimizer: Optimizer, models: Named, state: OptimizerState) -> None:
        check_kind(state.kind, type(optimizer).__name__)
        here = self._groups(optimizer, models)
        check_names(
            "optimized parameters",
            [name for group in state.groups for name in group["params"]],
            [name for group in here for name in group],
        )
        if [len(group) for group in here] != [len(group["params"]) for group in state.groups]:
            raise ConfigurationError(
                "This checkpoint belongs to different parameter groups. Received: groups of "
                f"{[len(group['params']) for group in state.groups]} in it, "
                f"{[len(group) for group in here]} here. Create them as they were when it was "
                "saved."
            )

    @torch.no_grad()
    def set_optimizer(self, optimizer: Optimizer, models: Named, state: OptimizerState) -> None:
        names = _names(optimizer, models)
        packed: dict[int, dict[str, Any]] = {}
        slots = _by_parameter(state)
        for index, (parameter, name) in enumerate(names.items()):
            held = slots.get(name)
            if held:
                packed[index] = {
                    slot: _as_slot(parameter, key, state) for slot, key in held.items()
                }
        places = {name: index for index, name in enumerate(names.values())}
        saved = {name: group for group in state.groups for name in group["params"]}
        groups = []
        for group, same in zip(optimizer.param_groups, state.groups, strict=True):
            own = [names[parameter] for parameter in group["params"]]
            kept = {**(saved[own[0]] if own else same)}
            scale = kept.pop(_SCALE, None)
            if scale is not None and self._held.training.scaling is not None:
                self._held.training.scaling.load_state_dict(scale)
            hyperparameters = {**_hyperparameters(group), **kept}
            groups.append({**hyperparameters, "params": [places[name] for name in own]})
        optimizer.load_state_dict({"state": packed, "param_groups": groups})

    def replicas(self, parts: Parts, wanted: Wanted) -> Replicas | None:
        alone = self._held.stepping_alone
        if alone is None:
            return None
        tensors: dict[str, torch.Tensor] = {}
        for key, model in parts.models.items():
            held = model.state_dict()
            tensors |= {f"model/{named_in(key, name)}": value for name, value in held.items()}
        for key, optimizer in parts.optimizers.items():
            states = self._states(optimizer, parts.models)
            tensors |= {
                f"optimizer/{named_in(key, name)}": value
                for name, value in states.items()
                if isinstance(value, torch.Tensor)
            }
        return replicas.kept(alone, tensors, array_of, self.random(parts.models), wanted)

    def own_of(self, found: CheckpointContent) -> CheckpointContent:
        alone = self._held.stepping_alone
        own = None if alone is None else replicas.own_of(alone, found)
        return super().own_of(found) if own is None else own

    def set_replicas(self, found: CheckpointContent, parts: Parts) -> None:
        alone, saved = self._held.stepping_alone, found.replicas
        if alone is None:
            return
        for optimizer in parts.optimizers.values():
            self._held.adopt(optimizer)
        if saved is not None and saved.count == alone.ranks.world_size:
            replicas.go_on(alone, saved, torch.from_numpy)

    def count_updates(self, optimizer: Optimizer, updated: Callable[[], None]) -> None:
        self._held.count_updates(optimizer, updated)

    def unkept(self, parts: Parts) -> Callable[[], list[str]]:
        return Unkept(parts).names

    def random(self, models: Named) -> dict[str, Any]:
        del models  # torch's layers draw from its one generator
        state = {**generators.state(), "torch": _bytes(), _FORKS: current.forks}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state().numpy().tobytes()
        return state

    def set_random(self, state: Mapping[str, Any], models: Named) -> None:
        del models
        generators.restore(state)
        if "torch" in state:
            torch.set_rng_state(_from_bytes(state["torch"]))
        current.forks = state.get(_FORKS, current.forks)
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


def _by_parameter(state: OptimizerState) -> dict[str, dict[str, str]]:
    """Return by parameter and slot the key of each."""
    slots: dict[str, dict[str, str]] = {}
    for key in (*state.arrays, *state.numbers):
        name, _, slot = key.rpartition("/")
        slots.setdefault(name, {})[slot] = key
    return slots


def _as_slot(parameter: torch.Tensor, key: str, state: OptimizerState) -> Any:
    if key in state.numbers:
        return state.numbers[key]
    if shape_of(state.arrays, key) == tuple(parameter.shape):
        return laid_as(parameter, key, state.arrays)
    return torch.from_numpy(part_of(state.arrays, key, None))
