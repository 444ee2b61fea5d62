"""What Keras's torch backend needs across processes: eager tensors and Python iterators."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any, final

import numpy as np
import torch
from keras.src.backend.torch.core import convert_to_tensor
from torch.utils.checkpoint import checkpoint

from dream._adapter import Plan
from dream._errors import Desynchronized
from dream._spec import Framework
from dream.adapters.keras import private
from dream.adapters.keras.data.digest import DIGESTS, digest_of
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.engine import BATCH, SHARE, Engine
from dream.adapters.pytorch.call_hook import CallHook, hook_of, set_hook
from dream.adapters.pytorch.data.loader import dealt_of, leave_loaders_alone
from dream.adapters.pytorch.devices import offset_by
from dream.adapters.pytorch.keras.moments import global_moments
from dream.adapters.pytorch.module import DistributedModule
from dream.collectives import Communicator
from dream.data.partition import deal, global_batches


@final
class TorchEngine(Engine):
    """One device a process; the communicator adds up."""

    pooled = False

    def __init__(self, communicator: Communicator, plan: Plan) -> None:
        self.communicator = communicator
        self._adding = communicator.unchecked()  # the same on every rank, at every step
        self.rank = communicator.rank
        self.parts = communicator.world_size
        self.seed = plan.seed
        self.resyncs = plan.resyncs

    @property
    def framework(self) -> Framework:
        return "torch"

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        with torch.no_grad():
            native = [convert_to_tensor(t).detach() for t in tensors]
            return list(self._adding.all_reduce(native, "sum"))

    def weigh(self, tensors: Sequence[Any], weight: Any) -> list[Any]:
        with torch.no_grad():
            if weight == 0:
                return [torch.zeros_like(convert_to_tensor(t)) for t in tensors]
            return [convert_to_tensor(t) * weight for t in tensors]

    def keep(self, share: Any, tensors: Sequence[Any]) -> list[Any]:
        return list(tensors) if share[0] else [torch.zeros_like(t) for t in tensors]

    def copies(self, variables: Sequence[Any]) -> list[Any]:
        return [v.value.detach().clone() for v in variables]

    def rows(self, batch: Any) -> Any:
        return len(next(t for t in private.tree.flatten(batch) if t is not None))

    def micros(self, rows: Any) -> Any:
        return min(max(rows, 1), self.knobs.accumulate)

    def ratio(self, some: Any, rows: Any) -> Any:
        return some / rows if rows else 1.0

    def fold(
        self, times: Any, compute: Callable[[Any], list[Any]], like: Sequence[Any]
    ) -> list[Any]:
        del like
        sums = [t.detach().clone() for t in compute(0)]
        for index in range(1, times):
            for total, found in zip(sums, compute(index), strict=True):
                total.add_(found.detach())
        return sums

    def moments(
        self, x: Any, axes: Sequence[int], mask: Any, present: Any, worth: Any
    ) -> tuple[Any, Any]:
        return global_moments(x, axes, mask, self.total, present, float(worth))

    def differentiable(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.is_floating_point()

    def recompute(self, run: Callable[..., Sequence[Any]], tensors: Sequence[Any]) -> Sequence[Any]:
        again: Callable[..., Sequence[Any]] = checkpoint
        return again(run, *tensors, use_reentrant=False, preserve_rng_state=False)

    def one_hot(self, share: Any) -> list[Any]:
        digests = torch.zeros(self.parts)
        digests[self.rank] = share[2]
        return [digests]

    def check_digests(self, share: Any, digests: Any) -> None:
        if share[2] and bool((digests != digests[0]).any()):
            raise Desynchronized(
                "The ranks read different batches from the same source. Received: batch digests "
                f"{[int(d) for d in digests]} by rank. Seed what draws or shuffles the data, so "
                "that every rank sees the same global batches."
            )

    def arrays(self, source: Arrays) -> Any:
        return _Iterable(lambda: self._array_elements(source))

    def _array_elements(self, source: Arrays) -> Iterator[Any]:
        inputs = private.sliceable(source.inputs, "torch")
        order, left_out = source.begin()
        for batch in islice(global_batches(order, source.batch_size), left_out, None):
            mine = deal(batch, self.rank, self.parts)
            shown = mine if len(mine) else batch[:1]
            data = private.tree.map_structure(lambda a, at=shown: _take(a, at), inputs)
            if self.parts == 1:
                yield data
            else:
                yield {BATCH: data, SHARE: (len(mine), len(batch), 0.0)}

    def batches(self, source: Batches) -> Any:
        if self.parts == 1:  # Keras's own may be good for one pass
            return _Iterable(lambda: self._read(source))
        return _Iterable(lambda: self._batch_elements(source))

    def _batch_elements(self, source: Batches) -> Iterator[Any]:
        for batch in self._read(source):
            flat = [t for t in private.tree.flatten(batch) if t is not None]
            total, digest = len(flat[0]), self._digest(flat)
            count = len(range(self.rank, total, self.parts))
            part = slice(self.rank, None, self.parts) if count else slice(0, 1)
            data = private.tree.map_structure(
                lambda t, at=part: None if t is None else convert_to_tensor(t[at]), batch
            )
            yield {BATCH: data, SHARE: (count, total, digest)}

    def _read(self, source: Batches) -> Iterator[Any]:
        return islice(_whole(source.adapter.get_torch_dataloader()), source.passes.left_out, None)

    def _digest(self, flat: Sequence[torch.Tensor]) -> int:
        if self.mixed:
            return digest_of(tensor.detach().cpu().numpy() for tensor in flat)
        return _digest(flat)

    def example(self, source: Arrays | Batches) -> Any:
        if isinstance(source, Arrays):
            return source.inputs
        return next(_whole(source.adapter.get_torch_dataloader()))

    def creating(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def looping(self) -> AbstractContextManager[Any]:
        return leave_loaders_alone()

    def stepping(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def applying(self) -> AbstractContextManager[Any]:
        return torch.no_grad()

    def outside(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def adopt_optimizer(self, optimizer: Any) -> None:
        """Nothing: torch optimizers know one device."""

    def adopt_model(self, model: Any) -> None:
        """Nothing: the torch trainer knows one device."""

    def take_over(self, model: Any) -> None:
        """A Keras model is a torch module too, which the block would hand to DDP."""
        for part in model.modules():
            held = hook_of(part)
            if isinstance(held, DistributedModule):
                held.release()
            if isinstance(held, CallHook):
                set_hook(part, None)

    def offset_seed(self, state: Any) -> None:
        if self.rank:
            state.assign(state + torch.tensor([self.rank, 0], dtype=state.value.dtype))

    def offset_generators(self) -> None:
        offset_by(self.rank)


class _Iterable:
    """A function that makes iterators, as an iterable."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def _take(array: Any, places: Any) -> Any:
    return (
        None
        if array is None
        else convert_to_tensor(array.convert_to_torch_compatible(array[places]))
    )


def _whole(loader: Any) -> Iterator[Any]:
    """Every sample of each global batch: of a loader made in the block, too."""
    dealt = dealt_of(loader)
    if dealt is not None:
        with dealt.reads.told("whole"):
            return iter(loader)
    return iter(loader)


def _digest(tensors: Sequence[Any]) -> int:
    """A number below 2**23, not 0, that batches with other content hardly share."""
    crc = 0
    for tensor in tensors:
        crc = zlib.crc32(np.ascontiguousarray(tensor.detach().cpu().numpy()).data, crc)
    return crc % (DIGESTS - 1) + 1
