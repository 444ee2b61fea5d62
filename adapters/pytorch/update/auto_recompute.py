"""`recompute="auto"`: a model's first batch is measured, block by block, and blocks are chosen that
are computed again from then on. That batch's activations are kept, those of a GPU on the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.call_hook import Wrapper, ensure_hook, unwrapped
from dream.adapters.pytorch.private import (
    NormBase,
    is_parameter,
    to_local,
    tree_leaves,
    version_of,
)
from dream.collectives import Communicator
from dream.update.recomputing import Block, Measured, blocks_of, choose

Watch = Callable[
    ["PassRecorder", nn.Module, Callable[[nn.Module], bool]], AbstractContextManager[None]
]
Forward = Callable[..., Any]
_SHARE = 0.9
"""Of a device's free memory: the rest is for what backward makes."""


@final
class AutoRecompute:
    """Chooses what one model computes again in backward. budget: as stated, None for what the
    device has free. world: all ranks. calls: of the first update, all of which are measured. skips:
    blocks that cannot be computed again. watch: has a recorder told of the calls of a model's
    parts. names: of those that are chosen, None until they are."""

    def __init__(
        self,
        budget: float | str | None,
        world: Communicator,
        *,
        calls: int = 1,
        skips: Callable[[nn.Module], bool] = lambda _: False,
        watch: Watch | None = None,
    ) -> None:
        self._budget, self._world = budget, world
        self._watch = _hooked if watch is None else watch
        self._left, self._skips = calls, skips
        self._measured: Measured | None = None
        self.names: tuple[str, ...] | None = None

    def begin(
        self, model: nn.Module, put: Callable[[], object], compiles: Callable[[], bool]
    ) -> bool:
        """A training call begins; return whether it is to be measured. put: has what is chosen
        recomputed, called when that is known. compiles: whether torch.compile has the model."""
        if self.names is not None:
            return False
        if compiles():
            raise Unsupported(
                "A model's blocks are measured as they are called, and a compiled model calls "
                "none. Received: recompute='auto' and torch.compile, which chooses by itself what "
                "to compute again. Remove one of them."
            )
        if self._left:
            return True
        self._decide(model)
        put()
        return False

    def measure(self, model: nn.Module, forward: Forward, *args: Any, **kwargs: Any) -> Any:
        """Run a training call of the model."""
        recorder = PassRecorder(model)
        with recorder.keeping(), self._watch(recorder, model, self._skips):
            output = forward(*args, **kwargs)
        self._measured = recorder.measured()
        self._left -= 1
        return output

    def _decide(self, model: nn.Module) -> None:
        """Choose for all ranks, where this one's activations are largest, by the memory of the one
        that has least."""
        assert self._measured is not None
        own = [self._measured.total, _free(model) if self._budget is None else None]
        totals, free = zip(*self._world.all_gather_object(own), strict=True)
        first = totals.index(max(totals))
        budget = min(free) if self._budget is None else self._budget
        found = None
        if first == self._world.rank:
            found = choose(self._measured, budget, stated=self._budget is not None)
        names, line = self._world.broadcast_object(found, root=first)
        if names is None:
            raise ConfigurationError(line)
        logger.info("%s", line)
        self.names, self._measured = names, None


def _free(model: nn.Module) -> int:
    """The bytes of a GPU that activations may take, once gradients are there."""
    device = torch.cuda.current_device()
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    trained = [to_local(p) for p in model.parameters() if p.requires_grad and p.grad is None]
    return round(_SHARE * (free + unused)) - sum(p.nbytes for p in trained if p.is_cuda)


@final
class MeasuredCall(Wrapper):
    """The next call of a model, where something else runs it."""

    def __init__(self, inner: Forward, auto: AutoRecompute, model: nn.Module) -> None:
        super().__init__(inner)
        self._auto, self._model = auto, model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._auto.measure(self._model, self.inner, *args, **kwargs)


@final
class _BlockCall(Wrapper):
    """The calls of one block while it is measured."""

    def __init__(
        self, inner: Forward, recorder: PassRecorder, name: str, block: nn.Module, *, takes: bool
    ) -> None:
        super().__init__(inner)
        self._recorder, self._name, self._block, self._takes = recorder, name, block, takes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.inner(*args, **kwargs)
        kind = type(self._block).__name__
        with self._recorder.block(self._name, self._block, (args, kwargs), kind=kind):
            if not self._takes:
                self._recorder.keep()
            return self.inner(*args, **kwargs)


@final
class PassRecorder:
    """One forward pass."""

    def __init__(self, model: nn.Module) -> None:
        self._own = {StorageWeakRef(t.untyped_storage()) for t in _held(model)}
        self._storages: dict[StorageWeakRef, int] = {}
        self._sizes: list[int] = []
        self._saves: dict[tuple[int | None, int], None] = {}
        self._places: dict[tuple[str, int | None], int] = {}
        self._seconds: list[float] = []
        self._inputs: list[set[int]] = []
        self._fixed: set[int] = set()  # blocks that cannot be computed again
        self._kinds: list[str] = []
        self._stack: list[int] = []
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}
        self._aside = 0.0

    def keeping(self) -> AbstractContextManager[None]:
        """Measure the model's call inside."""
        kept: AbstractContextManager[None] = saved_tensors_hooks(self._pack, _Kept.get)
        return kept

    @contextmanager
    def block(self, name: str, block: nn.Module, given: Any, *, kind: str) -> Iterator[None]:
        """A block is called inside."""
        above = self._stack[-1] if self._stack else None
        index = self._places.setdefault((name, above), len(self._places))
        if index == len(self._seconds):
            self._seconds.append(0.0)
            self._inputs.append(set())
            self._kinds.append(kind)
        for tensor in tree_leaves(given):
            if isinstance(tensor, torch.Tensor) and (storage := self._storage(tensor)) is not None:
                self._inputs[index].add(storage)
        state = _state(block)
        self._stack.append(index)
        begin = self._now()
        try:
            yield
        finally:
            self._seconds[index] += self._now() - begin
            self._stack.pop()
        if not _same(state, _state(block)):
            self._fixed.add(index)

    def keep(self) -> None:
        """Note that the block that is being called cannot be computed again."""
        self._fixed.add(self._stack[-1])

    def _now(self) -> float:
        """The seconds that have passed, save those spent here."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter() - self._aside

    def _storage(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's memory; None for a parameter's or a buffer's."""
        if tensor.layout is not torch.strided or is_parameter(tensor):
            return None
        storage = to_local(tensor).untyped_storage()
        key = StorageWeakRef(storage)  # which keeps its place from being given to another
        if key in self._own:
            return None
        if key not in self._storages:
            self._storages[key] = len(self._sizes)
            self._sizes.append(storage.nbytes())
        return self._storages[key]

    def _pack(self, tensor: torch.Tensor) -> _Kept:
        number = self._storage(tensor)
        own = tensor.detach()  # a node that held what it made would keep both for ever
        if number is None:
            return _Kept(own, own)
        self._saves[self._stack[-1] if self._stack else None, number] = None
        if tensor.device.type == "cpu":
            return _Kept(own, own)
        begin = self._now()
        key = number, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype
        version = version_of(tensor)
        if (*key, version) not in self._copies:
            self._copies[*key, version] = own.to("cpu")
        kept = _Kept(None, self._copies[*key, version], tensor.device)
        self._aside += self._now() - begin
        return kept

    def measured(self) -> Measured:
        keys = [*self._places]
        times: dict[tuple[str, int], list[float]] = {}
        inside = Measured(self._blocks(keys, self._seconds), (*self._sizes,), (*self._saves,), 0.0)
        alike = [*zip(self._kinds, inside.inside(), strict=True)]
        for key, seconds in zip(alike, self._seconds, strict=True):
            times.setdefault(key, []).append(seconds)
        least = [min(times[key]) for key in alike]  # whatever came first had to warm up
        whole = sum(s for s, (_, above) in zip(least, keys, strict=True) if above is None)
        return Measured(self._blocks(keys, least), inside.sizes, inside.saves, whole)

    def _blocks(
        self, keys: list[tuple[str, int | None]], seconds: list[float]
    ) -> tuple[Block, ...]:
        return blocks_of(keys, self._kinds, seconds, self._fixed, self._inputs)


@contextmanager
def _hooked(
    recorder: PassRecorder, model: nn.Module, skips: Callable[[nn.Module], bool]
) -> Iterator[None]:
    """Have the recorder told of each call of a part, by its hook."""
    hooks = []
    for name, part in model.named_modules():
        if part is not model:
            hook = ensure_hook(part)
            inner = unwrapped(hook.inner, (_BlockCall,))
            hook.inner = _BlockCall(inner, recorder, name, part, takes=not skips(part))
            hooks.append(hook)
    try:
        yield
    finally:
        for hook in hooks:
            hook.inner = unwrapped(hook.inner, (_BlockCall,))


@final
class _Kept:
    """A tensor that backward needs. saved: itself, None where its copy on the host is held."""

    def __init__(
        self, saved: torch.Tensor | None, held: torch.Tensor, device: torch.device | None = None
    ) -> None:
        self._saved, self._held, self._device = saved, held, device
        self._version = 0 if saved is None else version_of(saved)

    def get(self) -> torch.Tensor:
        if self._saved is None:
            return self._held.to(self._device)
        if version_of(self._saved) != self._version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation"
            )
        return self._saved


def _held(module: nn.Module) -> Iterator[torch.Tensor]:
    for tensor in (*module.parameters(), *module.buffers()):
        local = to_local(tensor)
        if local.layout is torch.strided:
            yield local


_OWN = {*vars(nn.Module()), "_compiled_call_impl"}


def _state(block: nn.Module) -> list[tuple[Any, int]]:
    """What a block holds beside its parameters, without its parts: numbers, tensors and how often
    these were written into. BatchNorm's statistics are counted once whoever computes it again."""
    values: list[Any] = [value for name, value in vars(block).items() if name not in _OWN]
    if not isinstance(block, NormBase):
        values += block.buffers(recurse=False)
    leaves = tree_leaves(values)
    held = [leaf for leaf in leaves if not isinstance(leaf, nn.Parameter)]
    tensors = [(leaf, version_of(leaf)) for leaf in held if isinstance(leaf, torch.Tensor)]
    return [*tensors, *((leaf, 0) for leaf in held if isinstance(leaf, (int, float)))]


def _same(before: list[tuple[Any, int]], after: list[tuple[Any, int]]) -> bool:
    return len(before) == len(after) and all(
        (x is y if isinstance(x, torch.Tensor) else x == y) and n == m
        for (x, n), (y, m) in zip(before, after, strict=True)
    )
