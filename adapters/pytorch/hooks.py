"""Everything of torch's that changes while a block is open; the only file that assigns to torch.

Each place is changed once, and tells those who subscribed before the block opened:

    hooks.made("module", registry.add)      # registry.add(module), after its __init__
    hooks.wrap("backward", watched)         # watched(torch's own) stands in its place
    hooks.open() ... hooks.close()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, final

import torch
from torch import distributed, nn
from torch.autograd.function import FunctionMeta
from torch.optim import Optimizer, lr_scheduler
from torch.utils.data import DataLoader

from dream import _patches
from dream._patches import Patches as Patches
from dream._patches import bound_to
from dream.adapters.pytorch.private import (
    DTENSOR_HANDLERS,
    NODE_HOOK,
    device_constructors,
    dispatcher_of,
)
from dream.adapters.pytorch.randomness.functions import DRAWS, DrawKind
from dream.files import saves as job_saves

Kind = Literal["module", "optimizer", "scheduler", "loader", "scaler"]
Place = Literal[
    "backward", "batch_norm", "clamp", "compile", "read", "param_group", "zero_grad", "clip_norm",
    "clip_value", "save", "load", "grad", "iter", "start_group", "end_group", "replicate",
    "scatter", "convert_norms", "call", "tensor_backward", "bucket_hook", "hook", "module_hook",
    "global_hook", "multi_hook", "node_hook", "compiled_function", "function_class", "detach",
    "script", "set_state",
]  # fmt: skip
Observer = Callable[[Any], None]
MadeOf = Callable[[Any, Mapping[str, Any]], None]
Wrap = Callable[[Any], Any]

_KINDS: Mapping[Kind, tuple[type[Any], ...]] = {
    "module": (nn.Module,),
    "optimizer": (Optimizer,),
    "scheduler": (  # those whose constructors do not call another's
        lr_scheduler.LRScheduler,
        lr_scheduler.ReduceLROnPlateau,
        lr_scheduler.SequentialLR,
        lr_scheduler.ChainedScheduler,
    ),
    "loader": (DataLoader,),
    "scaler": (torch.amp.GradScaler,),
}
_PLACES: Mapping[Place, tuple[Any, str]] = {
    "backward": (torch.autograd, "backward"),
    "batch_norm": (nn.functional, "batch_norm"),
    "compile": (nn.Module, "compile"),
    "param_group": (Optimizer, "add_param_group"),
    "zero_grad": (nn.Module, "zero_grad"),
    "clip_norm": (nn.utils, "clip_grad_norm_"),
    "clip_value": (nn.utils, "clip_grad_value_"),
    "save": (torch, "save"),
    "load": (torch, "load"),
    "grad": (torch.autograd, "grad"),
    "iter": (DataLoader, "__iter__"),
    "start_group": (distributed, "init_process_group"),
    "end_group": (distributed, "destroy_process_group"),
    "replicate": (nn.parallel.DistributedDataParallel, "__init__"),
    "scatter": (nn.DataParallel, "__init__"),
    "convert_norms": (nn.SyncBatchNorm, "convert_sync_batchnorm"),
    "call": (nn.Module, "__call__"),
    "detach": (torch.Tensor, "detach_"),
    "tensor_backward": (torch.Tensor, "backward"),
    "multi_hook": (torch.autograd.graph, "register_multi_grad_hook"),
    "node_hook": (torch.autograd.Function, NODE_HOOK),
    "compiled_function": (type(torch.ops.higher_order.autograd_function_apply), "__call__"),
    "function_class": (FunctionMeta, "__init__"),
    "bucket_hook": (nn.parallel.DistributedDataParallel, "register_comm_hook"),
}
_SEVERAL: Mapping[Place, tuple[tuple[Any, str], ...]] = {
    "set_state": ((nn.Module, "__setstate__"), (Optimizer, "__setstate__")),
    "script": tuple((torch.jit, name) for name in ("script", "trace", "trace_module")),
    "clamp": (
        (torch, "clamp"),
        (torch, "clamp_min"),
        (torch.Tensor, "clamp"),
        (torch.Tensor, "clamp_"),
        (torch.Tensor, "clamp_min"),
        (torch, "maximum"),
        (torch.Tensor, "maximum"),
    ),
    "hook": tuple((torch.Tensor, f"register_{name}hook") for name in ("", "post_accumulate_grad_")),
    "module_hook": tuple(
        (nn.Module, f"register_{name}") for name in (
            "backward_hook", "full_backward_hook", "full_backward_pre_hook",
    )),
    "global_hook": tuple(
        (nn.modules.module, f"register_module_{name}") for name in (
            "backward_hook", "full_backward_hook", "full_backward_pre_hook",
    )),
    "read": tuple((torch.Tensor, name) for name in (
        "item", "tolist", "numpy", "detach", "__float__", "__int__", "__format__", "__repr__",
    )),
}  # fmt: skip
"""Places of several names."""
_FIRST: tuple[tuple[Any, str], ...] = (
    (nn.Module, "__init__"),
    (nn.Module, "__call__"),
    (Optimizer, "__init__"),
    (DataLoader, "__init__"),
    (DataLoader, "__iter__"),
    (torch.autograd, "backward"),
)
"""What a script of torch's cannot do without."""
_FACTORIES = ("ones", "zeros", "full", "empty", "eye", "arange", "rand", "randn")


@final
class DTensorHandlers:
    """What DTensors do while a block is open, and from the first training call after it. kind:
    their class, which those import who have some. handlers: of operations. own: attributes of the
    class, by their names."""

    def __init__(
        self, kind: type[Any], handlers: Mapping[Any, Any], own: Mapping[str, Any]
    ) -> None:
        self._kind, self._handlers, self._own = kind, handlers, own
        self._patches = Patches()
        self._put = False

    def put(self) -> None:
        if not self._put:
            self._put = True
            owner, name = dispatcher_of(self._kind), DTENSOR_HANDLERS
            self._patches.replace(owner, name, {**getattr(owner, name), **self._handlers})
            for name, value in self._own.items():
                self._patches.replace(self._kind, name, value)

    def take_back(self) -> None:
        self._patches.restore()
        self._put = False


@final
class BackwardLent:
    """`torch.autograd.backward` outside a block, from a call of a module that stays distributed to
    the backward pass that follows it. dtensors: what those do that it leaves as gradients."""

    def __init__(self, dtensors: DTensorHandlers | None = None) -> None:
        self._dtensors = dtensors
        self._own: Any = None
        self._given: Any = None

    def lend(self, wrap: Wrap) -> None:
        """Have `wrap(backward)` stand in its place, once."""
        if self._dtensors is not None:
            self._dtensors.put()
        if self._given is None:  # once for each step: a list of one patch would be felt
            self._own = torch.autograd.backward
            torch.autograd.backward = self._given = wrap(self._own)

    def give_back(self) -> None:
        if self._given is not None and torch.autograd.backward is self._given:
            torch.autograd.backward, self._given = self._own, None


@final
class Hooks:
    """The changes that a strategy makes while its block is open. Those who subscribe first come
    first; a wrapper goes around those before it."""

    def __init__(self, patches: Patches | None = None) -> None:
        self.patches = patches or Patches()
        self._making: dict[Kind, list[Observer]] = {}
        self._made: dict[Kind, list[MadeOf]] = {}
        self._binds: set[Kind] = set()
        self._wraps: list[tuple[Place, Wrap]] = []

    def making(self, kind: Kind, observer: Observer) -> None:
        """Tell `observer(object)` before an object is initialised."""
        self._making.setdefault(kind, []).append(observer)

    def made(self, kind: Kind, observer: Observer) -> None:
        """Tell `observer(object)` once an object is initialised."""
        self._made.setdefault(kind, []).append(lambda made, _: observer(made))

    def made_of(self, kind: Kind, observer: MadeOf) -> None:
        """Tell `observer(object, arguments)` likewise: its constructor's, by name, defaults too."""
        self._made.setdefault(kind, []).append(observer)
        self._binds.add(kind)

    def tell_made(self, kind: Kind, made: Any) -> None:
        """Tell of an object that has come to be without its constructor, as a copy does."""
        for told in self._made.get(kind, ()):
            told(made, {})

    def wrap(self, place: Place, wrapper: Wrap) -> None:
        """Have `wrapper(function)` stand for a function."""
        self._wraps.append((place, wrapper))

    def open(self) -> None:
        device_constructors()  # torch lists them once: not by what stands for them in a block
        for kind in {**self._making, **self._made}:
            before, after = self._making.get(kind, []), self._made.get(kind, [])
            for owner in _KINDS[kind]:
                told = observed(owner.__init__, before, after, binds=kind in self._binds)
                self.patches.replace(owner, "__init__", told)
        named = [
            (owner, name, wrapper)
            for place, wrapper in self._wraps
            for owner, name in _SEVERAL.get(place) or (_PLACES[place],)
        ]
        functions = [getattr(o, name) for o, name, _ in named if isinstance(o, ModuleType)]
        bound = bound_to(functions, "torch")
        for owner, name, wrapper in named:
            original = getattr(owner, name)
            wrapped = wrapper(original)
            self.patches.replace(owner, name, wrapped)
            if isinstance(owner, ModuleType):
                bound[id(wrapped)] = bound.pop(id(original), [])
                for module, own_name in bound[id(wrapped)]:
                    self.patches.replace(module, own_name, wrapped)

    def close(self) -> None:
        self.patches.restore()


def observed(
    init: Callable[..., None], before: list[Observer], after: list[MadeOf], *, binds: bool
) -> Callable[..., None]:
    """A constructor that tells of what it makes. binds: its arguments too."""
    parameters = signature(init) if binds else None

    @wraps(init)
    def wrapped(made: Any, *args: Any, **kwargs: Any) -> None:
        for observer in before:
            observer(made)
        init(made, *args, **kwargs)
        given: Mapping[str, Any] = {}
        if parameters is not None:
            bound = parameters.bind(made, *args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
        for told in after:
            told(made, given)

    return wrapped


def write_files_once(hooks: Hooks) -> None:
    """torch.save and torch.load of named files: written whole, by the rank whose file it is, and
    read once rank 0 has written it. What goes to an open file or buffer, or comes from one, stays
    torch's own."""
    saves = job_saves.here()
    hooks.wrap("save", lambda save: _saving(save, saves))
    hooks.wrap("load", lambda load: _loading(load, saves))


def _saving(save: Any, saves: job_saves.SavedPaths) -> Any:
    @wraps(save)
    def save_once(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            save(obj, f, *args, **kwargs)
            return

        def fill(part: Path) -> None:
            with part.open("wb") as file:
                save(obj, file, *args, **kwargs)

        saves.save(f, fill)

    return save_once


def _loading(load: Any, saves: job_saves.SavedPaths) -> Any:
    @wraps(load)
    def load_after(f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)):
            saves.before_reading(f)
        return load(f, *args, **kwargs)

    return load_after


@contextmanager
def factories(wrapper: Wrap) -> Iterator[None]:
    """Have `wrapper(make)` stand for torch.ones and the like, which take sizes alone, inside."""
    with Patches() as patches:
        for name in _FACTORIES:
            patches.replace(torch, name, wrapper(getattr(torch, name)))
        yield


@contextmanager
def functions(wrapper: Wrap) -> Iterator[None]:
    """Have `wrapper(apply)` stand for `apply` of a script's own `autograd.Function`s, inside."""
    with Patches() as patches:
        own = vars(torch.autograd.Function)["apply"].__func__
        patches.replace(torch.autograd.Function, "apply", classmethod(wrapper(own)))
        yield


def first_use(found: Callable[[], None]) -> Callable[[], None]:
    """Have `found` called before the first module, optimizer or loader is made or used. Returns
    what ends that. Loaders say nothing where Keras is there, which trains on them on TensorFlow."""
    several = "keras" in sys.modules
    return _patches.first_use([p for p in _FIRST if not several or p[0] != DataLoader], found)


@final
class DrawPatches:
    """What stands for torch's random operations while a block is open or a model of one is called.

    stands: (kind, name, torch's own) -> what stands for it.
    """

    def __init__(self, stands: Callable[[DrawKind, str, Any], Any]) -> None:
        self._stands = stands
        self._wanted = 0
        self._known: dict[tuple[Any, str], tuple[Any, Any]] = {}
        self._bound: list[tuple[ModuleType, str, Any, Any]] = []
        self._seen = 0  # modules, as they were looked through
        self._patches = Patches()

    @property
    def stand(self) -> bool:
        """Whether a block is open, or a call runs."""
        return self._wanted > 0

    def put(self, *, anew: bool = False) -> None:
        """Have them stand there; as often as they are taken back. anew: a block begins, and names
        of the script's are looked for again."""
        if anew:
            self._seen = 0
        self._wanted += 1
        if self._wanted > 1:
            return
        for kind, owners, names in DRAWS:
            for owner in owners:
                for name in names:
                    own = getattr(owner, name)
                    its_own, stands = self._known.get((owner, name), (None, None))
                    if its_own is not own:
                        stands = self._stands(kind, name, own)
                        self._known[owner, name] = own, stands
                    self._patches.replace(owner, name, stands)
        for module, name, own, stands in self._by_name():
            if vars(module).get(name) is own:
                self._patches.replace(module, name, stands)

    def _by_name(self) -> list[tuple[ModuleType, str, Any, Any]]:
        """Return where a script has them by name, as of `from torch import randn`: looked for again
        once something else has been imported."""
        if self._seen != len(sys.modules):
            self._seen = len(sys.modules)
            known = [pair for (at, _), pair in self._known.items() if isinstance(at, ModuleType)]
            bound = bound_to([own for own, _ in known], "torch")
            self._bound = [
                (*at, own, stands) for own, stands in known for at in bound.get(id(own), ())
            ]
        return self._bound

    def take_back(self) -> None:
        self._wanted -= 1
        if self._wanted:
            return
        for module, name, _, stands in self._bound:
            if vars(module).get(name) is not stands:  # the script has given the name to another
                self._patches.leave(module, name)
        self._patches.restore()

    def lifted(self) -> AbstractContextManager[None]:
        """Torch's own stand there inside."""
        return self._patches.lifted()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """They stand there inside."""
        self.put()
        try:
            yield
        finally:
            self.take_back()
