"""A training that the launcher was asked to keep, and that its script has not said what it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, final
from weakref import WeakKeyDictionary, WeakSet, ref

import numpy as np
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from dream._errors import Unsupported
from dream._log import logger
from dream._strategy import current
from dream.adapters.pytorch.data.loader import made_by_the_script
from dream.adapters.pytorch.optimizer import parameters_of
from dream.adapters.pytorch.private import to_local, version_of
from dream.adapters.pytorch.randomness.own_generators import script_frames
from dream.adapters.pytorch.tensors import dtype_name
from dream.checkpoint.checkpointer import Parts
from dream.checkpoint.storage.words import keep_too
from dream.checkpoint.untouched.loop import is_under_way
from dream.checkpoint.untouched.trained import Trained
from dream.checkpoint.untouched.training import UNSAVED, watch
from dream.cluster import settings
from dream.data import tracked

_BLOCK = "strategy"
_GIVEN = ("model", "optimizer", "scheduler", "data")
Names = dict[str, list[str]]


@final
class UnsavedTraining(Trained):
    """Sees what trains. Where no loop has it kept, it tells that nothing is."""

    kinds = (
        nn.Module, nn.Parameter, Optimizer, LRScheduler, ReduceLROnPlateau, GradScaler, DataLoader,
        torch.Generator, np.random.Generator, np.random.RandomState, random.Random,
    )  # fmt: skip
    parted = (nn.Module,)
    bare = nn.Module()

    def __init__(self, *, loops: bool) -> None:
        """loops: whether a loop may have it kept."""
        self.known = settings.checkpoints().folder is None
        self.steps = self.updates = 0
        self._loops = loops
        self._stepped: WeakSet[Optimizer] = WeakSet()
        self._models: list[nn.Module] = []
        self._grads: WeakKeyDictionary[Optimizer, tuple[nn.Parameter, Any]] = WeakKeyDictionary()
        self._first: ref[Optimizer] | None = None
        self._hook: RemovableHandle | None = None

    def watch(self) -> None:
        strategy = current()
        if self.known or strategy is None:
            return
        self._hook = register_optimizer_step_post_hook(self._steps)
        if self._loops:
            watch(strategy, self)

    def rest(self) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _steps(self, optimizer: Optimizer, *_: Any) -> None:
        self._stepped.add(optimizer)
        self.steps += 1
        stepped = next((p for p in parameters_of(optimizer) if p.grad is not None), None)
        if stepped is not None:
            self._grads[optimizer] = stepped, ref(stepped.grad)
        self._first = ref(optimizer) if self._first is None else self._first
        self.updates += self._first() is optimizer
        if not self.known and not is_under_way():
            self.known = True
            logger.info(UNSAVED, "", load_lines())

    def begin(self) -> None:
        self._first = None

    def named(self, variables: Iterable[tuple[str, Any]]) -> Parts:
        every: dict[int, tuple[str, Any]] = {}
        taken: set[str] = set()
        for name, value in variables:
            if id(value) not in every and isinstance(value, self.kinds):
                unique = f"{name} {len(taken)}" if name in taken else name
                taken.add(unique)
                every[id(value)] = unique, value
        named = dict(every.values())
        optimizers = {name: x for name, x in named.items() if isinstance(x, Optimizer)}
        steps = {id(each) for each in optimizers.values()}
        states = {name: _tensors(x) for name, x in named.items() if isinstance(x, nn.Module)}
        models = _alone({name: named[name] for name in covering(states)})
        self._models = [*models.values()]
        return Parts(
            models,
            _alone(optimizers),
            _alone({name: x for name, x in named.items() if goes_beside(x, steps)}),
            {name: x for name, x in named.items() if tracked.found_in(x) is not None},
        )

    def unnamed(self, parts: Parts) -> list[str]:
        held = {id(each) for each in parts.optimizers.values()}
        lost = {type(each).__name__ for each in self._stepped if id(each) not in held}
        weights = {id(p) for model in parts.models.values() for p in model.parameters()}
        trained = (p for each in parts.optimizers.values() for p in parameters_of(each))
        if any(id(p) not in weights for p in trained):
            lost.add("the model of some parameters")
        return sorted(lost)

    def left_over(self, parts: Parts) -> bool:
        stepped = (self._grads.get(each) for each in parts.optimizers.values())
        return any(p.grad is not None and p.grad is not own() for p, own in filter(None, stepped))

    def form(self, parts: Parts) -> Any:
        optimizers = parts.optimizers.values()
        return (
            [[name for name, _ in _named(model)] for model in parts.models.values()],
            [[len(group["params"]) for group in each.param_groups] for each in optimizers],
        )

    def modes(self, parts: Parts) -> list[Any]:
        models = parts.models.values()
        return [
            [[each.training for each in model.modules()] for model in models],
            [[p.requires_grad for p in model.parameters()] for model in models],
        ]

    def set_modes(self, parts: Parts, modes: list[Any]) -> None:
        for model, training, trained in zip(parts.models.values(), *modes, strict=True):
            for module, mode in zip(model.modules(), training, strict=True):
                module.training = mode
            for parameter, grad in zip(model.parameters(), trained, strict=True):
                parameter.requires_grad_(grad)

    def live(self) -> Callable[[Any], bool]:
        every = {_memory(x) for model in self._models for _, x in _named(model)} - {0}
        return lambda value: isinstance(value, torch.Tensor) and _memory(value) in every

    def within(self, value: Any) -> Mapping[str, Any]:
        if isinstance(value, nn.Module):
            return dict(value.named_children())
        if isinstance(value, DataLoader):
            return made_by_the_script(value)
        return {}

    def version(self, value: Any) -> int | None:
        tensor = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
        return version_of(value) if tensor else None

    @torch.no_grad()
    def write(self, tensor: Any, value: Any) -> bool:
        alike = isinstance(value, torch.Tensor) and value.shape == tensor.shape
        fits = alike and value.dtype == tensor.dtype
        if fits:
            tensor.copy_(value)
        return fits

    def lines(self) -> str:
        return load_lines()


def _named(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _memory(tensor: torch.Tensor) -> int:
    return to_local(tensor).untyped_storage().data_ptr()


def _tensors(model: nn.Module) -> set[int]:
    return {id(x) for x in (*model.parameters(), *model.buffers())}


def _alone(named: dict[str, Any]) -> dict[str, Any]:
    return dict(zip([""], named.values(), strict=True)) if len(named) == 1 else named


def _plain(tensor: torch.Tensor) -> list[Any]:
    if type(tensor) is not torch.Tensor or tensor.requires_grad:
        raise Unsupported("A checkpoint can only store plain tensors and plain values.")
    kept = tensor.detach().cpu().contiguous()
    whole = kept.reshape(-1).view(torch.uint8).numpy().tobytes()
    return [dtype_name(tensor.dtype), [*tensor.shape], str(tensor.device), whole]


def _made(told: list[Any]) -> torch.Tensor:
    dtype, shape, device, whole = told
    flat = torch.frombuffer(bytearray(whole), dtype=getattr(torch, dtype)) if whole else None
    made = torch.empty(0, dtype=getattr(torch, dtype)) if flat is None else flat
    return made.reshape(shape).to(device)


def load_lines() -> str:
    """Return the lines that have a training saved and gone on with, in the words of the script that
    lacks them: of the outermost function that names the most of what trains by now;
    "..." for what none names."""
    found = max(
        reversed([_names(frame) for frame in script_frames()]), key=_how_many, default=Names()
    )
    given = [f"{word}={_said(found.get(word, []))}" for word in _GIVEN if _asked(word, found)]
    block = next(iter(found.get(_BLOCK, [])), _BLOCK)
    return (
        f"    at = {block}.load({', '.join(given)})\n"
        "    for epoch in range(at.epoch if at else 0, ...):  # the loop over epochs"
    )


def _names(frame: FrameType) -> Names:
    """Return by word what a function names, each thing once."""
    here = {id(value): (name, value) for name, value in reversed([*_variables(frame)])}
    named = [*reversed(here.values())]
    optimizers = {name: x for name, x in named if isinstance(x, Optimizer)}
    trained = {id(p) for each in optimizers.values() for p in parameters_of(each)}
    stepped = {id(each) for each in optimizers.values()}
    read = {track for track, batches in tracked.read_so_far().items() if batches}
    models = {name: _weights(x) & trained for name, x in named if isinstance(x, nn.Module)}
    return {
        _BLOCK: [name for name, x in named if x is current()],
        "model": [*covering(models)],
        "optimizer": [*optimizers],
        "scheduler": [name for name, x in named if goes_beside(x, stepped)],
        "data": [name for name, x in named if tracked.found_in(x) in read],
    }


def _variables(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Those of a function, and what an object of the script holds that it calls `self`."""
    yield from frame.f_locals.items()
    itself = getattr(frame.f_locals.get("self"), "__dict__", {})
    yield from ((f"self.{name}", value) for name, value in itself.items())


def _weights(model: nn.Module) -> set[int]:
    return {id(parameter) for parameter in model.parameters()}


def covering(models: dict[str, set[int]]) -> Iterator[str]:
    """The fewest that hold all that is trained: a model, and not its parts."""
    covered: set[int] = set()
    for name, weights in sorted(models.items(), key=lambda each: -len(each[1])):
        if weights - covered:
            yield name
        covered |= weights


def goes_beside(x: Any, stepped: set[int]) -> bool:
    if isinstance(x, GradScaler):
        return x.is_enabled()
    return isinstance(x, (LRScheduler, ReduceLROnPlateau)) and id(x.optimizer) in stepped


def _how_many(names: Names) -> int:
    return sum(bool(names[word]) for word in _GIVEN)


def _asked(word: str, names: Names) -> bool:
    return word != "scheduler" or bool(names.get(word))


def _said(names: list[str]) -> str:
    if len(names) > 1:
        return "{" + ", ".join(f'"{name.rpartition(".")[2]}": {name}' for name in names) + "}"
    return names[0] if names else "..."


keep_too("tensor", torch.Tensor, _plain, _made)
