"""A module that DistributedDataParallel reduces, itself left as it is."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from operator import add, attrgetter
from typing import Any, NoReturn, final
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from dream.adapters.pytorch import devices, private
from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.errors import refuse_computed
from dream.adapters.pytorch.loss.backward import WeighedBackward
from dream.adapters.pytorch.loss.calls import SIZE, Bearer, LossMessage, Numbers
from dream.adapters.pytorch.module import DistributedModule, ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward
from dream.adapters.pytorch.parallel.ddp.late import LateReduction
from dream.adapters.pytorch.parallel.ddp.message_slot import MessageSlot
from dream.adapters.pytorch.parallel.ddp.settings import DdpForward, DdpSettings, forward_of
from dream.adapters.pytorch.parallel.one_copy.parameters import OneCopy
from dream.adapters.pytorch.parallel.one_copy.training import refused_loop
from dream.adapters.pytorch.private import recomputing
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.fitting import refused_loop as refused_loop_that_fits
from dream.adapters.pytorch.update.gradient_check import drop_zeros
from dream.data.partition import Share
from dream.shared_memory import Riders
from dream.update.fitting import RanOut

_requires_grad = attrgetter("requires_grad")
_joined: WeakSet[DdpModule] = WeakSet()


def _let_go_of_groups() -> None:
    """A reducer that is the last to hold a process group waits for the group's threads with
    Python's lock in its hand, and they may be waiting for that lock (torch's issue 56297)."""
    for module in [*_joined]:
        module.release()


@final
class DdpModule(DistributedModule, Bearer):
    """Takes the calls of one module and runs them under DDP.

    trained: the parameters that this module's DDP reduces, the message not among them. copy: the
    one of all ranks, instead of a DDP. late: averages after backward, instead of a DDP too.
    """

    completes = True
    trained: list[nn.Parameter] = []
    copy: OneCopy | None = None
    late: LateReduction | None = None

    def __init__(
        self,
        module: nn.Module,
        registry: ModuleRegistry,
        inner: Forward | None,
        *,
        settings: DdpSettings,
        backward: WeighedBackward,
    ) -> None:
        super().__init__(module, registry, inner)
        self._settings, self._backward = settings, backward
        self._explicit = settings.once is not None or settings.fits
        self._ddp: DistributedDataParallel | None = None
        self._runner = DdpForward(self)
        set_hook(self._runner, None)  # it is made in the block, but is no user's
        self._forward: Forward = self._runner.forward
        self._parameters: list[nn.Parameter] = []
        self.trained = []
        self._reduced: tuple[tuple[object, ...], ...] = ()
        self._kind: tuple[object, ...] = ()
        self._trained: tuple[bool, ...] = ()
        self._generation = -1
        self._held: list[RemovableHandle] = []
        self._begins = self.completes = True
        self._shares = False  # parameters that another module reduces
        self._reducer: Any = None
        self._riders: Riders | None = None
        self._slot: MessageSlot | None = None
        self._riding: Sequence[float] = ()
        self._alone: torch.Tensor | None = None
        self._norms = batch_norm.norms(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.registry.training_call():
            return self._beside(args, kwargs)
        if self._explicit:
            raise refused_loop_that_fits() if self._settings.once is None else refused_loop()
        if self.registry.training.scaling is not None:
            self.registry.training.scaling.loop_calls()
        share = self.registry.shares.of((*args, *kwargs.values()))
        updates = self.registry.updates
        if updates is not None:
            self.completes = updates.begin(share, self.module)
            self._begins = share is None or share.micro == 0
        if not self._backward.installed:
            self._backward.lend()
        if share is None and self.module.training:
            shares, given = self.registry.shares, (*args, *kwargs.values())
            why = shares.why_whole(given)
            first = self._ddp is None
            self._backward.reader.tell_whole(given, why, kept=shares.kept, first=first)
        return self._run(share, args, kwargs)

    def call_part(
        self, share: Share | None, args: tuple[Any, ...], *, first: bool, last: bool
    ) -> Any:
        """A call by an explicit step, on one of an update's micro-batches. Only the last one's
        backward reduces."""
        self._begins, self.completes = first, last
        return self._run(share, args, {})

    @property
    def meets(self) -> bool:
        return bool(self.synchronised) and self.module.training

    @property
    def waits(self) -> bool:
        return self.backwards.armed

    def ride(self, message: Numbers) -> bool:
        if not self.trained:  # frozen, and trained through: there is nothing to ride with
            own = torch.as_tensor(message, dtype=torch.float64)
            self._alone = own if self._begins or self._alone is None else self._alone + own
            return True
        self.backwards.expect(self.trained)
        self._runner.buckets.reduced = False
        if self.late is not None:
            self.late.ride(message, begins=self._begins)
            return True
        riders = self._riders
        if riders is None:
            return False
        numbers = message.tolist() if isinstance(message, torch.Tensor) else message
        if not self._begins:
            numbers = [*map(add, self._riding, numbers)]
        riders.own[:SIZE] = self._riding = numbers
        return True

    def carry(
        self, message: Numbers, loss: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        slot = self._slot if self._begins else None
        if slot is None or isinstance(message, torch.Tensor) or not slot.write(message):
            return super().carry(message, loss)
        self.backwards.expect(self.trained)
        self._runner.buckets.reduced = False
        assert self._runner.message is not None
        return self._runner.message, slot.nothing

    def send(self, message: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        carrier = self._runner.message
        if carrier is None:
            return None
        if self._begins:
            carrier.grad = None
        return carrier, message.to(carrier.device, carrier.dtype)

    def finish(self, run: Callable[..., None]) -> None:
        """Heads that are used by turns: the others count as nothing, on this rank. What no rank has
        a gradient of has none after it, as on one device."""
        self.backwards.averaged()
        if self.copy is not None and self.completes:
            self.copy.reduce()
        if self.late is not None and self.completes:
            self.late.reduce()
            if self.registry.updates is not None:
                self.registry.updates.held.renote()
        self.backwards.bare_again()
        if self._reducer is None or not self.completes or self._runner.buckets.reduced:
            return
        places = private.unreduced(self._reducer)
        if not places:
            return
        message = self._runner.message
        reduced = self.trained if message is None else [message, *self.trained]
        unused, sparse = [reduced[place] for place in places], self._settings.sparse(self._runner)
        bare = [parameter for parameter in unused if parameter.grad is None]
        with self.backwards.completing(self.trained):
            run(unused, [_nothing(parameter, sparse) for parameter in unused])
        for parameter in bare:
            drop_zeros(parameter)
        if self.registry.updates is not None:
            self.registry.updates.held.renote()

    def give_up(self, word: float) -> NoReturn:
        """Tell all ranks, in the gradients' place, that memory ran out on this one."""
        if self.late is None:
            raise RanOut(word)
        self.late.give_up(word)

    def taken_elsewhere(self) -> None:
        self.backwards.averaged()

    def received(self) -> Numbers:
        if self._alone is not None:
            alone, self._alone = self._alone, None
            means: torch.Tensor = self.registry.communicator.all_reduce(alone)
            return means
        if self.late is not None:
            return self.late.means
        if self._riders is not None:
            ridden: Sequence[float] = self._riders.means
            return ridden
        if self._slot is not None:
            return self._slot.read()
        carrier = self._runner.message
        assert carrier is not None
        assert carrier.grad is not None
        return carrier.grad

    def prepare(self) -> None:
        """DDP is made at the first call."""
        self._claim()
        self.trained = self._untaken()
        if self.trained:
            self.registry.settle(self.module)
            self.registry.begin(self.module)

    def release(self) -> None:
        for handle in self._held:
            handle.remove()
        self._held = []
        if self.copy is not None:
            self.copy.release()
            self.copy = None
        group = None
        if self._ddp is not None:
            group = self._ddp.process_group  # outlives the reducer: it ends without Python's lock
            private.remove_hooks(self._ddp)
            vars(self._ddp).clear()  # it refers to itself, and its buckets are as large as a model
            self._ddp = None
            self._runner.forget_buckets()
            self._forward = self._runner.forward
        self._riders = self._reducer = self.late = self._slot = self._alone = None
        del group
        self.backwards.came()  # a backward of its calls is averaged by nobody
        self.backwards.stop()

    def _run(self, share: Share | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._refresh()
        forward = self._forward if self.completes else self._runner.forward
        called = self._backward.called(self, share, args, kwargs)
        share = called.share
        empty = share is not None and share.count == 0
        precision = self.registry.precision
        if precision is None:
            output = self._call(forward, args, kwargs, share, empty=empty)
        else:

            def call(*args: Any, **kwargs: Any) -> Any:
                return self._call(forward, args, kwargs, share, empty=empty)

            output = precision.call(call, args, kwargs)
        called.mark(output)
        if self.completes and (self._norms or self.synchronised):
            self._average_running()
        return output

    def _beside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is no training: to evaluate, inside another module, or by a backward pass
        that repeats one."""
        if self.registry.inside:
            return self.inner(*args, **kwargs)
        if recomputing():
            return self.registry.training.call(self.inner, args, kwargs)
        with self.registry.beside(self.module):
            return self.registry.training.call_beside(self.module, self.inner, args, kwargs)

    def _local_norms(self) -> list[nn.Module]:
        return [norm for norm in batch_norm.norms(self.module) if norm not in self.synchronised]

    def _average_running(self) -> None:
        for synced in self.synchronised.values():
            synced.settle()
        running = batch_norm.running(self._norms)
        if running:
            private.foreach_copy_(running, self.registry.communicator.all_reduce(running))

    def _refresh(self) -> None:
        """Make DDP again where what it reduces has changed since."""
        if self._generation != self.registry.generation or self._kind != self._kind_now():
            self._claim()
        trained = tuple(map(_requires_grad, self._parameters))
        if trained != self._trained or self._shares:
            self._trained = trained
            self._build()

    def _claim(self) -> None:
        self._generation = self.registry.generation
        self.claim()
        self.take_options()
        precision = self.registry.precision
        if precision is not None and precision.casts_models:
            self.registry.settle(self.module)  # before rank 0's weights are rounded
            precision.cast(self.module)
        self._parameters = list(self.module.parameters())
        self._kind = self._kind_now()
        refuse_computed(self.module)
        self._trained = ()

    def _kind_now(self) -> tuple[object, ...]:
        """Return what is another once a model is moved, or cast, in the midst of training."""
        first = self._parameters[0] if self._parameters else None
        return () if first is None else (first.dtype, first.device)

    def _untaken(self) -> list[nn.Parameter]:
        taken = self.registry.taken(self)
        return [p for p in self._parameters if p.requires_grad and id(p) not in taken]

    def _take_over(self) -> None:
        """Reduce what is shared with modules that no backward pass is to come through."""
        own = {id(p) for p in self._parameters if p.requires_grad}
        for other in [*self.registry.roots]:
            if other is not self and isinstance(other, DdpModule) and not other.waits:
                other.yield_to(own)

    def yield_to(self, others: set[int]) -> None:
        """Leave these parameters to another module, until the next call of this one."""
        left = [p for p in self.trained if id(p) not in others]
        if len(left) < len(self.trained):
            self.release()
            self.trained, self._trained, self._reduced = left, (), ()
            self.registry.generation += 1

    def _build(self) -> None:
        self._take_over()
        taken = self.registry.taken(self)
        self._shares = any(id(p) in taken for p in self._parameters)
        self.trained = self._untaken()
        reduced = tuple((id(p), p.dtype, p.device) for p in self.trained)
        if reduced and reduced == self._reduced:
            return
        self.release()
        self._reduced = reduced
        self._norms = self._local_norms()
        self._runner.message = None
        if reduced:
            self.late = self._settings.late(self.trained, self.registry.communicator)
            if self.registry.communicator.world_size > 1 and self.late is None:
                self._riders = self._settings.riders_of(self._runner)
            if self._riders is None and self.late is None:
                self._runner.message = message = self._new_message()
                self._slot = None if devices.is_away(message) else MessageSlot(message)
            if self.registry.communicator.world_size > 1:
                self.registry.settle(self.module)
                self._join(taken)
                self.registry.begin(self.module)
            if self.registry.updates is not None:
                self._held = self.registry.updates.held.watch(self.trained)
            if self._ddp is not None and self._settings.sparse(self._runner):
                self._held += [parameter.register_hook(_apart) for parameter in self.trained]
            self.backwards.watch_others(self.trained[0])

    def _join(self, taken: set[int]) -> None:
        """Have gradients reduced: by DDP, or to the one copy of all ranks."""
        if self._settings.once is not None:
            self.copy = self._settings.once.take(self.trained)
            return
        if self.late is not None:
            return
        if not _joined:
            atexit.register(_let_go_of_groups)
        _joined.add(self)
        self._ddp = self._settings.wrap(self._runner, taken)
        self._forward = forward_of(self._ddp, self._runner)
        self._reducer = self._ddp.reducer

    def _new_message(self) -> LossMessage:
        """One in the gradients' own bucket, where they are not of half precision."""
        like = self.trained[0]
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        return LossMessage(torch.zeros(SIZE, dtype=dtype, device=like.device))


def _nothing(parameter: nn.Parameter, sparse: set[torch.Tensor]) -> torch.Tensor:
    layout = torch.sparse_coo if parameter in sparse else torch.strided
    return torch.zeros_like(parameter, layout=layout, requires_grad=False)


def _apart(gradient: torch.Tensor) -> torch.Tensor:
    """A sparse gradient in memory of its own: its values may be those that backward goes on from,
    and DDP divides them in place."""
    return gradient.clone() if gradient.is_sparse else gradient
