"""A script that distributes itself by torch's own means, in the block: it finds its group there,
and its wrappers leave the work to dream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, final

from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.parallel.base import Parallelism


@final
class OwnDistribution:
    """What torch's own functions do in the block."""

    def __init__(self, parallelism: Parallelism) -> None:
        self._own = parallelism

    def subscribe(self, hooks: Hooks) -> None:
        if self._own.world.world_size > 1:
            hooks.wrap("start_group", self._start_group)
            hooks.wrap("end_group", _end_group)
            hooks.wrap("replicate", self._replicate)
            hooks.wrap("scatter", self._scatter)
            if self._own.update_options.synchronises:
                hooks.wrap("convert_norms", lambda _: _keep_norms)

    def _start_group(self, start: Callable[..., None]) -> Callable[..., None]:
        """`init_process_group` that finds the group that is there."""

        @wraps(start)
        def wrapped(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
            if not distributed.is_initialized():
                start(backend, *args, **kwargs)
                return
            ranks, rank = kwargs.get("world_size", -1), kwargs.get("rank", -1)
            world = self._own.world
            if ranks not in (-1, world.world_size) or rank not in (-1, world.rank):
                raise ConfigurationError(
                    "This job's process group already exists and differs from the one requested. "
                    f"Received: init_process_group(world_size={ranks}, rank={rank}) on rank "
                    f"{world.rank} of {world.world_size}. Remove both, or take them from RANK and "
                    "WORLD_SIZE."
                )
            there = _backends()
            if backend is not None and not set(_named(backend)) & set(_named(there)):
                logger.info(
                    "init_process_group(%r) finds this job's group, which has %s", backend, there
                )

        return wrapped

    def _replicate(self, init: Callable[..., None]) -> Callable[..., None]:
        """`DistributedDataParallel(model)` that leaves reducing to dream."""

        @wraps(init)
        def wrapped(made: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            if type(module).__module__.startswith("dream."):
                init(made, module, *args, **kwargs)
                return
            made.__class__ = _passing(type(made))
            begin(made, module, args, kwargs)

        return wrapped

    def _scatter(self, init: Callable[..., None]) -> Callable[..., None]:
        """`DataParallel(model)` on one device, which is the rank's."""

        @wraps(init)
        def wrapped(made: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
            del args, kwargs
            nn.Module.__init__(made)
            made.module, made.device_ids, made.dim = module, [], 0

        return wrapped


class ReplicatedByDream(DistributedDataParallel):
    """A `DistributedDataParallel` that only keeps its module: dream reduces the gradients."""

    __getstate__ = nn.Module.__getstate__
    __setstate__ = nn.Module.__setstate__

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients are reduced at each backward; their sum over an accumulation is the same."""
        yield

    def join(self, *args: Any, **kwargs: Any) -> Any:
        raise _refused("join", "Take the `with model.join():` out: dream weighs uneven batches")

    def register_comm_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise _refused("register_comm_hook", "Take it out, and say dream.strategy(compression=...)")


def begin(made: Any, module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    """Set what scripts read of a `DistributedDataParallel`."""
    device_ids = args[0] if args else given.get("device_ids")
    nn.Module.__init__(made)
    made.module, made.device_ids, made.dim = module, device_ids, 0
    made.output_device = given.get("output_device")
    made.require_backward_grad_sync = made.require_forward_param_sync = True
    made.process_group = distributed.group.WORLD


def _passing(kind: type[Any]) -> type[Any]:
    """The class with dream's methods; a subclass of the user's keeps its own on top."""
    bases = (ReplicatedByDream,) if kind is DistributedDataParallel else (kind, ReplicatedByDream)
    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, bases, body)


def _end_group(end: Callable[..., None]) -> Callable[..., None]:
    """`destroy_process_group` that leaves the job's own group, which dream ends at exit."""

    @wraps(end)
    def wrapped(group: Any = None) -> None:
        if group not in (None, distributed.group.WORLD):
            end(group)

    return wrapped


def _keep_norms(module: nn.Module, process_group: Any = None) -> nn.Module:
    """`SyncBatchNorm.convert_sync_batchnorm`, which dream does to every model."""
    del process_group
    return module


def _backends() -> str:
    group = distributed.group.WORLD
    config = distributed.get_backend_config(group)
    return str(config)


def _named(backends: str) -> list[str]:
    """The backends in torch's words for them ("gloo", "cpu:gloo,cuda:nccl")."""
    return [part.rpartition(":")[2] for part in backends.lower().split(",")]


def _refused(method: str, remedy: str) -> Unsupported:
    return Unsupported(
        "In the block DistributedDataParallel leaves the work to dream, which does not support "
        f"this. Received: {method}(). {remedy}."
    )
