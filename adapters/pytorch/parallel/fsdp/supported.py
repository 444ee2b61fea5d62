"""Models that FSDP2 cannot shard, refused by name: by what they are made of, and by forward passes
that write to parameters, which is lost with what was gathered, or stays on this rank alone."""

from __future__ import annotations

from collections import Counter
from typing import Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils.parametrize import ParametrizationList

from dream._errors import Unsupported
from dream.adapters.pytorch.drift import digests
from dream.adapters.pytorch.parallel.fsdp import private
from dream.adapters.pytorch.parallel.fsdp.units import Owned
from dream.adapters.pytorch.parallel.sharding.backward_starts import given_by
from dream.adapters.pytorch.private import is_view, recomputing, tree_leaves, tree_map

_FIRST = 4
"""Training calls that are looked at; from then on those whose number has doubled."""


def check_dtypes(module: nn.Module, own: Owned) -> None:
    parameters = [getattr(part, name) for part, name in own]
    dtypes = {parameter.dtype for parameter in parameters if parameter.requires_grad}
    if len(dtypes) > 1:
        raise Unsupported(
            "Parameters that are gathered together must be of one dtype. Received: "
            f"{', '.join(sorted(map(str, dtypes)))} in {type(module).__name__}. Put those of "
            "another dtype into a child module, or use 'mirrored'."
        )


def check_supported(module: nn.Module) -> None:
    """Refuse by name what FSDP2 cannot shard."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            raise Unsupported(
                f"FSDP2 cannot reduce sparse gradients. Received: {name or type(part).__name__} "
                "with sparse=True. Pass sparse=False, or use 'mirrored'."
            )
        if isinstance(part, nn.AdaptiveLogSoftmaxWithLoss):
            raise Unsupported(
                "Ranks gather a part's parameters together, and this one calls only those of its "
                f"clusters that a rank's own targets are in. Received: {name or 'a model'}, an "
                "AdaptiveLogSoftmaxWithLoss. Use 'mirrored' or zero=1."
            )
    for name, parameter in module.named_parameters():
        if parameter.dim() == 0:
            raise Unsupported(
                "FSDP2 cuts parameters along their first dim, and a number has none. Received: "
                f"{name} of {type(module).__name__}, shape (). Give it shape (1,), or use "
                "'mirrored' or zero=1."
            )
        if parameter.is_complex() and parameter.shape == (1,):
            raise Unsupported(
                "A part of one complex number has no view of its own as real ones, by which "
                f"optimizers step it: it would not be trained. Received: {name} of "
                f"{type(module).__name__}, shape (1,). Give it shape (1, 1), or use 'mirrored' or "
                "zero=1."
            )


def check_runs_first(module: nn.Module) -> None:
    """Refuse what makes a weight from others and buffers: it runs whenever the weight is looked at,
    so before the whole model; FSDP2 then takes it for a model of its own."""
    for name, part in module.named_modules():
        if isinstance(part, ParametrizationList) and any(True for _ in part.buffers()):
            kinds = ", ".join(type(each).__name__ for each in part)
            raise Unsupported(
                "A parametrization with buffers runs before the model that it is part of, and "
                f"FSDP2 refuses that. Received: {name or 'a weight'} ({kinds}). Use 'mirrored', or "
                "split='tensor', which leave it whole."
            )


def check_all_sharded(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor):
            raise Unsupported(
                "A parameter is in no module that can gather it. Received: "
                f"{name} of {type(module).__name__}. It must be in a module with a forward pass, "
                "when that is split and not later; or use 'mirrored'."
            )


@final
class ForwardWrites:
    """Looks at one unit. Takes the place of hooks of a module, whose parameters are gathered by the
    first and are still there at the second."""

    def __init__(self, own: Owned) -> None:
        self._own = own
        self._calls: Counter[tuple[bool, bool]] = Counter()
        self._before: torch.Tensor | None = None

    def runs(self, unit: nn.Module, _: Any) -> None:
        """The unit is about to run."""
        self._before = None
        if recomputing():
            return
        kind = unit.training, torch.is_grad_enabled()
        self._calls[kind] += 1
        if self._calls[kind] > _FIRST and self._calls[kind].bit_count() > 1:
            return
        if any(hasattr(getattr(module, name), "fake_mode") for module, name in self._own):
            return  # a rehearsal: there are no values
        self._before = self._digests()

    def ran(self, *_: Any) -> None:
        """It has run. Raises `Unsupported` where it has written."""
        before, self._before = self._before, None
        if before is None:
            return
        for (module, name), same in zip(
            self._own, (before == self._digests()).tolist(), strict=True
        ):
            if not same:
                raise Unsupported(
                    "A forward pass writes to a parameter that is sharded, and what it writes is "
                    "this rank's alone, or lost where no gradient is asked for. "
                    f"Received: {name} in {type(module).__name__}. Write to it "
                    "between steps, by what is alike on every rank, or choose what holds whole "
                    "parameters and finds replicas that differ: 'mirrored'."
                )

    def _digests(self) -> torch.Tensor:
        return digests([getattr(module, name) for module, name in self._own])


def begin_at_hidden(unit: nn.Module, _: Any, output: Any) -> None:
    """Have backward passes know what a unit gives elsewhere than where FSDP2 looks."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        seen = {id(x) for x in tree_leaves(output)}
        found = (x for x in given_by(unit, output) if not x.is_leaf)
        hidden = [x for x in found if id(x) not in seen]
        if hidden:
            private.begin_backward_at(unit, hidden)


def without_views(_: nn.Module, __: Any, output: Any) -> Any:
    """Clone views: FSDP2 hooks what a unit gives, and changed in place, a view would lose that
    hook, and backward would begin without the unit's parameters."""
    return tree_map(_without_view, output)


def _without_view(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad and is_view(value):
        return value.clone()
    return value
