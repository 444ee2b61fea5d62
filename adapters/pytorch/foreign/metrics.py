"""Metrics of torchmetrics, which put the ranks' counts together whenever there is a process group:
those of batches that ranks share, as they should, and those of batches that each reads whole."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch

from dream._framework import ImportWatch
from dream._log import Once
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.private import wrap_metric_updates
from dream.collectives import Communicator

_LIBRARY = "torchmetrics"
_BOTH = (
    "a metric has counted batches that ranks share and batches that each reads whole since its "
    "last reset, and can be right for one kind alone; reset it between training and evaluation, "
    "or make one for each"
)
_dealt: Communicator | None = None
"""Of the block that was opened last. A metric is pickled and copied, so it cannot hold one."""


def of_shares() -> bool:
    """Whether the ranks' counts are to be put together: a metric's `distributed_available_fn`."""
    return True


def of_whole_batches() -> bool:
    """As `of_shares`: each rank has counted everything."""
    return False


def gathered(counts: torch.Tensor, group: object = None) -> list[torch.Tensor]:
    """Return every rank's `counts`, of any shape, in rank order: a metric's `dist_sync_fn`."""
    del group
    if _dealt is None:
        return [counts]
    shapes = _dealt.all_gather_object(list(counts.shape))
    flat = _dealt.all_gather(counts.detach().reshape(-1))
    sizes = [int(torch.Size(shape).numel()) for shape in shapes]
    return [part.reshape(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)]


@final
class Metrics:
    """Tells metrics, as they count a batch, whether the other ranks count the rest of it."""

    def __init__(self, dealt: Communicator, shares: Shares, hooks: Hooks) -> None:
        self._communicator, self._shares, self._patches = dealt, shares, hooks.patches
        self._watch = ImportWatch(self._begin, [_LIBRARY])
        self._say = Once()

    def enter(self) -> None:
        """Take those there are, and those that are made in the block. The hooks take it back."""
        global _dealt
        _dealt = self._communicator
        self._watch.start()

    def exit(self) -> None:
        self._watch.remove()

    def _begin(self) -> None:
        library: Any = sys.modules[_LIBRARY]
        for item in gc.get_objects():
            if issubclass(type(item), library.Metric) and "update" in vars(item):
                self._patches.replace(item, "update", self._told(item, item.update))
        name, wrap = wrap_metric_updates(library.Metric)
        self._patches.replace(library.Metric, name, self._told_of_new(wrap))
        whole = library.MetricCollection
        self._patches.replace(whole, "update", self._told_of_all(whole.update))

    def _told_of_new(self, wrap: Callable[..., Any]) -> Callable[..., Any]:
        return wraps(wrap)(lambda metric, update: self._told(metric, wrap(metric, update)))

    def _told_of_all(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(update)
        def wrapped(collection: Any, *args: Any, **kwargs: Any) -> None:
            update(collection, *args, **kwargs)
            for metric in collection.values(copy_state=False):
                self._mark(metric, (args, kwargs))  # of those that count alike, one is updated

        return wrapped

    def _told(self, metric: Any, update: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(update)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            self._mark(metric, (args, kwargs))
            update(*args, **kwargs)

        return wrapped

    def _mark(self, metric: Any, given: object) -> None:
        kind = of_shares if self._shares.parts(given) else of_whole_batches
        known = metric.distributed_available_fn
        if known is kind:
            return
        if known in (of_shares, of_whole_batches):
            if metric.update_count:
                self._say(_BOTH)
        elif metric.dist_sync_fn is not None:
            return  # the script's own way
        metric.distributed_available_fn, metric.dist_sync_fn = kind, gathered
