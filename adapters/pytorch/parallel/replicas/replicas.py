"""The calls of a module that its replicas in one process share, each with its part of a batch."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves

from dream._log import logger
from dream.adapters.pytorch.parallel.inner_calls import (
    called_by_user,
    evaluating,
    running_layers,
    without_side_effects,
)
from dream.adapters.pytorch.parallel.replicas.copies import settle_buffers
from dream.adapters.pytorch.parallel.replicas.data_parallel import (
    gather,
    rows_of,
)
from dream.adapters.pytorch.parallel.replicas.followed import Followed
from dream.adapters.pytorch.parallel.replicas.recomputing import Recomputing
from dream.adapters.pytorch.parallel.replicas.team import Team, tell_of_statistics, waiting
from dream.adapters.pytorch.slot import Slot


@final
class Parallel(Slot):
    """Takes the calls of a module: the outermost one that is called, and has parameters, runs in
    all places, and its outputs are gathered on the first device.

    The gradient needs no weights then: the loss is taken of all outputs together.
    """

    def __init__(
        self,
        module: nn.Module,
        team: Team,
        followed: Followed,
        recomputing: Recomputing,
        *,
        together: bool,
    ) -> None:
        """together: whether BatchNorm is to see all parts of a batch."""
        super().__init__(module)
        self._team, self._together = team, together
        self._followed, self._recomputing = followed, recomputing
        self._by_sample: bool | None = None  # not known yet

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (called_by_user() and has_parameters(self.module)):
            return self.inner(*args, **kwargs)
        return self._followed.call(self.module, self._run, args, kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if self._by_sample is False or _shapeless(self.module):
            return self._alone(args, kwargs)
        parts = self._team.scatter((args, kwargs))
        if len(parts) > 1 and self._by_sample is None:
            self._by_sample = self._is_by_sample(args, kwargs, parts)
        if len(parts) == 1 or not self._by_sample:
            return self._alone(args, kwargs)
        if not self._together:
            tell_of_statistics(self.module)
        replicas, outputs = self._apply(parts)
        if torch.is_grad_enabled():
            settle_buffers(self.module, replicas)
        return gather(outputs, self._team.first)

    def _alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._recomputing.take(self.module, [self.module])
        with running_layers():
            return self._team.call(0, self.module, self.module, args, kwargs)

    def _apply(self, parts: list[Any]) -> tuple[list[nn.Module], list[Any]]:
        self._team.expect(self.module, *parts[0])
        replicas = self._team.replicas(self.module, len(parts))
        self._recomputing.take(self.module, replicas)
        call = self._team.call
        calls = [partial(call, index, self.module, copy) for index, copy in enumerate(replicas)]
        with running_layers(), waiting(replicas, together=self._together) as watched:
            return replicas, self._team.apply([watched(call) for call in calls], parts)

    def _is_by_sample(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], parts: list[Any]
    ) -> bool:
        """Whether parts of a batch give what the whole does, looked at once. A loss with
        parameters does not, nor what has its samples along another dim than 0."""
        with torch.no_grad(), without_side_effects(self.module), evaluating(self.module):
            _, outputs = self._apply(parts)
            whole = self._alone(args, kwargs)
        alike = _has_rows(outputs, parts) and _equal(gather(outputs, self._team.first), whole)
        if not alike:
            logger.info(
                "%s gives no row for each sample that depends on it alone: it runs on one device",
                type(self.module).__name__,
            )
        return alike


def _shapeless(module: nn.Module) -> bool:
    """Whether a first call has to give the parameters their shapes."""
    return any(isinstance(p, UninitializedParameter) for p in module.parameters())


def has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _has_rows(outputs: list[Any], parts: list[Any]) -> bool:
    return all(
        x.dim() > 0 and len(x) == rows_of(part)
        for output, part in zip(outputs, parts, strict=True)
        for x in tree_leaves(output)
        if isinstance(x, torch.Tensor)
    )


def _equal(gathered: Any, whole: Any) -> bool:
    """Alike but for rounding."""
    pairs = zip(tree_leaves(gathered), tree_leaves(whole), strict=True)
    return all(
        x.shape == y.shape
        and torch.allclose(x, y, rtol=max(1e-3, _eps(x)), atol=max(1e-5, _eps(x)), equal_nan=True)
        for x, y in pairs
        if isinstance(x, torch.Tensor)
    )


def _eps(x: torch.Tensor) -> float:
    return 8 * torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0
