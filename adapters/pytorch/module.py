"""The modules of a strategy: one registry, and what every distributed module does."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, final
from weakref import WeakSet, ref

import torch
from torch import nn

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch import private
from dream.adapters.pytorch.call_hook import CallHook, ModuleSet, hook_of, set_hook, untransformed
from dream.adapters.pytorch.data.shares import Shares
from dream.adapters.pytorch.devices import make_room
from dream.adapters.pytorch.errors import share_of_one
from dream.adapters.pytorch.foreign import lazy
from dream.adapters.pytorch.keras.entry import is_keras
from dream.adapters.pytorch.optimizer import Forward, Training
from dream.adapters.pytorch.private import recomputing, to_local
from dream.adapters.pytorch.randomness.calls import CallDraws, is_compiled
from dream.adapters.pytorch.update import batch_norm
from dream.adapters.pytorch.update.auto_recompute import AutoRecompute
from dream.adapters.pytorch.update.batch_norm import Synchronised, synchronise, taking
from dream.adapters.pytorch.update.gradient_check import BackwardCheck
from dream.adapters.pytorch.update.recompute import How, recompute
from dream.collectives import Communicator
from dream.data.partition import Share
from dream.model_description.layout import check_same, unnumbered
from dream.update.recomputing import AUTO

if TYPE_CHECKING:
    from dream.adapters.pytorch.loss.samples.row_leaves import RowLeaves

Make = Callable[[nn.Module, "ModuleRegistry", Forward | None], "DistributedModule"]


@final
class ModuleRegistry:
    """The modules of one strategy: the outermost one that a training loop calls is distributed.

    make: distributes a module. inside: a distributed module is running, so those it calls are its
    parts. generation: grows whenever parameters may have been replaced. synchronises: BatchNorm
    normalises by all ranks' samples. recomputes: which layers are, memory_budget: by what
    they are chosen. bare: parameters of no module,
    whose gradients are averaged after backward, by their ids. row_leaves: what modules were called
    with that wants a gradient of its own rows.
    """

    def __init__(
        self,
        make: Make,
        communicator: Communicator,
        shares: Shares,
        training: Training,
        *,
        synchronises: bool = False,
        recomputes: How = False,
        memory_budget: float | str | None = None,
        world: Communicator | None = None,
        takes_meta: bool = False,
        draws: CallDraws | None = None,
    ) -> None:
        """world: all ranks, where several take the same share. takes_meta: a module may be on the
        meta device, and gets its values as it is distributed."""
        self.communicator = communicator
        self.world = world or communicator
        self._takes_meta = takes_meta
        self.shares = shares
        self.training, self.updates, self.precision = training, training.updates, training.precision
        self.synchronises = synchronises and communicator.world_size > 1
        self.recomputes, self.memory_budget = recomputes, memory_budget
        self.draws = draws or CallDraws(communicator.rank, shares)
        self.inside = False
        self.bare: dict[int, ref[torch.Tensor]] = {}
        self.row_leaves: RowLeaves | None = None
        self.generation = 0
        self.roots: WeakSet[DistributedModule] = WeakSet()
        self._make = make
        self._told = ModuleSet()
        training.watch(self.called, self._trained)

    def add(self, module: nn.Module) -> None:
        """Take the calls of a module that was made in the block."""
        if not is_keras(module):
            set_hook(module, Pending(module, self))

    def distribute(self, module: nn.Module) -> DistributedModule:
        """Distribute a module on first use; its parts are then parts, not roots."""
        hook = hook_of(module)
        if isinstance(hook, DistributedModule) and hook in self.roots:
            return hook
        lazy.refuse_shapeless(module)
        if not self._takes_meta:
            refuse_meta(module)
        for part in module.modules():
            before = hook_of(part)
            if isinstance(before, DistributedModule):
                before.release()
                self.roots.discard(before)
        self.generation += 1
        make_room(module.parameters())
        root = self._make(module, self, hook.inner if isinstance(hook, CallHook) else None)
        self.roots.add(root)
        set_hook(module, root)
        return root

    def taken(self, root: DistributedModule) -> set[int]:
        """The ids of the parameters that other roots reduce."""
        return {id(p) for other in self.roots if other is not root for p in other.trained}

    def settle(self, module: nn.Module) -> None:
        """Start as rank 0, after a look at whether every rank built the same."""
        check_same(self.world.all_gather_object(layout_of(module)))
        start_as_rank_0(module, self.world)

    def begin(self, module: nn.Module) -> None:
        """A module is about to be trained for the first time."""
        if module not in self._told:
            self._told.add(module)
            if self.communicator.world_size > 1 and not self.synchronises:
                batch_norm.tell_local_statistics(module)

    def reduced(self) -> dict[int, DistributedModule]:
        """The root that reduces each parameter's gradient, by the parameter's id."""
        found = {id(parameter): root for root in self.roots for parameter in root.trained}
        if self.precision is not None and self.precision.masters is not None:
            for root in self.roots:
                masters = map(self.precision.masters.of, root.trained)
                found |= {id(master): root for master in masters if master is not None}
        return found

    def grown(self, add: Callable[..., None]) -> Callable[..., None]:
        """`Optimizer.add_param_group`, by which a module's new parameters come to be trained."""

        @wraps(add)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            add(*args, **kwargs)
            self.generation += 1

        return wrapped

    def training_call(self) -> bool:
        """Whether a module called now is called by the user's training loop: with gradients on,
        not by another distributed module, and not by a recomputation during backward."""
        if self.inside or not torch.is_grad_enabled() or private.current_backward() != -1:
            return False
        return untransformed(self.communicator.world_size)

    def beside(self, module: nn.Module) -> AbstractContextManager[None]:
        """Around a call that no backward pass comes to, as a teacher's: what compiled code draws
        there for a share of a batch is not known."""
        if module.training and not self.inside and is_compiled(module) and self.shares.now_parted:
            return self.draws.alone(module, "compiled code")
        return nullcontext()

    def note_rows(self, args: tuple[Any, ...]) -> None:
        """A frozen module is called, through which a gradient may come to rows of a batch."""
        if self.row_leaves is not None:
            self.row_leaves.note(self.shares.of(args), args)

    def chooser(self) -> AutoRecompute | None:
        """Make what chooses a module's layers to be recomputed, where that was asked for."""
        if self.recomputes != AUTO:
            return None
        return AutoRecompute(self.memory_budget, self.world, calls=self.training.most)

    def averaged(self, parameter: torch.Tensor) -> bool:
        """Whether it is of no module, and its gradient was averaged after backward."""
        known = self.bare.get(id(parameter))
        if self.row_leaves is not None and parameter in self.row_leaves:
            return True  # of rows, that nobody else has
        return known is not None and known() is parameter

    def called(self) -> bool:
        """Whether a module was called in training, and its backward has not come."""
        return any(root.backwards.armed for root in self.roots)

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for root in self.roots for parameter in root.trained]


class DistributedModule(CallHook):
    """Takes the calls of one module, whose gradients become global in backward.

    The module keeps its class, its names and its state. backwards: those that were reduced.
    """

    def __init__(self, module: nn.Module, registry: ModuleRegistry, inner: Forward | None) -> None:
        super().__init__(module, inner)
        self.registry = registry
        self.number = registry.generation  # grows with each root
        self.backwards = BackwardCheck()
        self.synchronised: dict[nn.Module, Synchronised] = {}
        self._parts = 1  # of the batch that the last call was on
        self._auto = registry.chooser()

    @property
    @abstractmethod
    def trained(self) -> list[nn.Parameter]:
        """The parameters whose gradients are reduced here."""

    @abstractmethod
    def prepare(self) -> None:
        """Be ready for the first call, as far as can be before it."""

    @abstractmethod
    def release(self) -> None:
        """Stop reducing: another module's root takes over."""

    def trains(self) -> bool:
        """Whether a part that is called now is called by a training call of the whole."""
        return self.registry.inside or recomputing()

    def claim(self) -> None:
        """Know when one of the module's parts is called by itself."""
        for part in self.module.modules():
            if part is not self.module and not isinstance(hook_of(part), PartHook):
                set_hook(part, PartHook(part, self))

    def _copies(self) -> int:
        """How many ranks have each row of the batch: all where it was not dealt."""
        return self.registry.communicator.world_size // self._parts

    def take_options(self, weight: Callable[[], float] = lambda: 1.0) -> None:
        """Have BatchNorms normalise together and layers recomputed, as was asked for. weight: what
        this rank's gradients are multiplied by after backward."""
        registry = self.registry
        if registry.synchronises:
            among = registry.communicator
            self.synchronised = synchronise(
                self.module, self.synchronised, among, self.trains, self._copies, weight
            )
            if self.synchronised and self._compiles():
                for synced in self.synchronised.values():
                    synced.leave_graphs()
        if self._auto is None:
            recompute(self.module, registry.recomputes, self.trains)
        elif self._auto.names:
            recompute(self.module, self._auto.names, self.trains)

    def _compiles(self) -> bool:
        """Whether torch.compile has the module, or some of its parts."""
        if self.inner != private.own_call(self.module):
            return True
        return any(map(private.is_compiled, self.module.modules()))

    def _call(
        self,
        forward: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        share: Share | None,
        *,
        empty: bool,
    ) -> Any:
        """A forward pass whose backward will be reduced. share: of the batch that it is on."""
        self.backwards.arm()
        if self.synchronised and not taking(self.synchronised):
            self.take_options()
        auto = self._auto
        if auto is not None and auto.begin(self.module, self.take_options, self._compiles):
            forward = partial(auto.measure, self.module, forward)
        self.registry.inside = True
        self._parts = 1 if share is None else share.parts
        draws = self.registry.draws
        draws.begin(self.module, share, (args, kwargs))
        try:
            if empty:
                return call_empty(self.module, forward, args, kwargs)
            return forward(*args, **kwargs)
        except ValueError as error:
            known = None if empty else share_of_one(error, type(self.module).__name__)
            if known is None:
                raise
            raise known from error
        finally:
            draws.end(self.module)
            self.registry.inside = False


@final
class Pending(CallHook):
    """Takes the calls of a module made in the block until it is known whose part it is."""

    def __init__(
        self, module: nn.Module, registry: ModuleRegistry, inner: Forward | None = None
    ) -> None:
        super().__init__(module, inner)
        self._registry = registry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        if self._registry.training_call():
            parameters = list(module.parameters())
            if not parameters and self.inner == private.own_call(module):
                set_hook(module, None)
            elif any(parameter.requires_grad for parameter in parameters):
                given, shares = (*args, *kwargs.values()), self._registry.shares
                if not lazy.has_shapes(module) and shares.of(given) is None:
                    return self._give_shapes(args, kwargs)
                return self._registry.distribute(module)(*args, **kwargs)
            else:
                self._registry.note_rows((*args, *kwargs.values()))
        with self._registry.beside(module):
            return self.inner(*args, **kwargs)

    def _give_shapes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._registry.inside = True  # its parts are none by themselves
        try:
            return lazy.give_shapes(self.module, self.inner, args, kwargs)
        finally:
            self._registry.inside = False


@final
class PartHook(CallHook):
    """Takes the calls of a part of a distributed module. It changes nothing; where the part is
    called by itself in training, it has the gradients from there watched."""

    def __init__(self, module: nn.Module, root: DistributedModule) -> None:
        super().__init__(module)
        self._root, self._registry = root, root.registry

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._registry.inside:
            return self.inner(*args, **kwargs)
        output = self.inner(*args, **kwargs)
        if self._registry.training_call():
            self._root.backwards.part_called(output)
        return output


def call_empty(
    module: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A forward pass on no sample, which leaves no trace in running statistics."""
    running = batch_norm.running(batch_norm.norms(module))
    before = [buffer.clone() for buffer in running]
    try:
        output = forward(*args, **kwargs)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{type(module).__name__} cannot take an empty batch, and this rank has no sample of "
            f"this one. Received: {str(error).rstrip('.')}. Pass drop_last=True where it is a "
            "loader's last one, or choose a batch_size, or batches, that leave every rank a sample."
        ) from error
    for buffer, value in zip(running, before, strict=True):
        buffer.copy_(value)
    return output


def start_as_rank_0(module: nn.Module, communicator: Communicator) -> None:
    """Take rank 0's parameters and buffers, those that are whole here, written only where they
    differ: a graph that holds them already (a penalty on the weights) must not find them
    touched."""
    held = (tensor.detach() for tensor in (*module.parameters(), *module.buffers()))
    own = [tensor for tensor in held if to_local(tensor) is tensor and not tensor.is_meta]
    if not own:
        return
    for tensor, first in zip(own, communicator.broadcast(own), strict=True):
        if not torch.equal(tensor, first):
            tensor.copy_(first)


def layout_of(module: nn.Module) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of each parameter and buffer, in order."""
    named = [*module.named_parameters(), *module.named_buffers()]
    if is_keras(module):
        named = [(unnumbered(name), tensor) for name, tensor in named]
    return [(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in named]


def refuse_meta(module: nn.Module) -> None:
    """Raise for a parameter on the meta device, which has no values."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise Unsupported(
                "A model on the meta device has no values to replicate. Received: "
                f"{name} of {type(module).__name__}. Make it on its real device; 'sharded' and "
                "split='tensor' take it as it is."
            )
