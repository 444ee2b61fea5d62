"""The four primitives of one process that drives many devices: replicate a model, scatter a batch,
apply each replica to its part, gather the outputs.

    devices = ["cuda:0", "cuda:1"]                                  # or ["cpu"] * 2
    replicas = replicate(model, devices)
    parts = scatter((x, y), devices)
    losses = parallel_apply([partial(loss_of, replica) for replica in replicas], parts, devices)
    gather(losses, devices[0]).mean().backward()                    # gradients are the model's

Scripts have them as `dream.torch.replicate` and so on. On CUDA devices they are torch's own. On CPU
devices, where torch has none, replicas are copies that run in threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from functools import cache, reduce
from typing import Any, TypeVar, cast, final

import torch
from torch import nn
from torch.nn import parallel

from dream._errors import ConfigurationError
from dream.adapters.pytorch.call_hook import set_hook
from dream.adapters.pytorch.data.reading.rows import cut_rows, rows_of
from dream.adapters.pytorch.parallel.replicas.private import bare_copy, know_weights
from dream.adapters.pytorch.private import tables, tree_map
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.update import batch_norm

T = TypeVar("T")


def submit(thread: str, device: torch.device, act: Callable[..., T], *args: Any) -> Future[T]:
    """Have a thread act, in the caller's modes: gradients, autocast, context variables.

    thread: its name; one of that name serves the process until it ends.
    """
    run = _as_here(device, act)
    return _queue(thread).submit(copy_context().run, run, *args)


@cache
def _queue(thread: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=thread)


def _as_here(device: torch.device, act: Callable[..., T]) -> Callable[..., T]:
    """Torch keeps its modes by thread; these are the caller's."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for kind in {"cpu", device.type}
    ]
    cached, caller = torch.is_autocast_cache_enabled(), current.caller()

    def run(*args: Any) -> T:
        with ExitStack() as stack:
            stack.enter_context(current.working_for(caller))
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for kind, dtype, enabled in casts:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cached))
            if device.type == "cuda":
                stack.enter_context(torch.cuda.device(device))
            return act(*args)

    return run


def results(futures: list[Future[T]]) -> list[T]:
    """Return what they gave, in order, once all have ended; the first error where there was one."""
    failed = [error for future in futures if (error := future.exception()) is not None]
    if failed:
        raise failed[0]
    return [future.result() for future in futures]


M = TypeVar("M", bound=nn.Module)
Place = Callable[[str], torch.device]
"""The device on which a copy has a parameter or buffer, by its name in the module."""
Copied = Callable[[str, torch.Tensor], torch.Tensor]
"""A parameter or buffer by its name in the module -> what the copy holds."""


def copy_of(module: M, copied: Copied) -> M:
    """A module of the same classes, whose tensors `copied` gives, each asked for once. Whatever
    else the module holds is shared, as torch's own replicas share it.

    Its parameters may be any tensors: copies that gradients flow back from, or leaves.
    """
    made: dict[int, torch.Tensor] = {}

    def once(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = copied(name, tensor)
        return made[id(tensor)]

    copies = {part: _bare(part) for part in module.modules()}
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        copy, (children, parameters, buffers) = copies[part], tables(part)
        own_children, own_parameters, own_buffers = tables(copy)
        for name, child in children.items():
            own_children[name] = None if child is None else copies[child]
        for name, parameter in parameters.items():
            if parameter is not None:
                setattr(copy, name, once(f"{prefix}{name}", parameter))
                copy.__dict__.pop(name, None)
                own_parameters[name] = made[id(parameter)]
            else:
                own_parameters[name] = None
        for name, buffer in buffers.items():
            own_buffers[name] = None if buffer is None else once(f"{prefix}{name}", buffer)
    for copy in copies.values():
        know_weights(copy)
    return cast(M, copies[module])


def _bare(part: nn.Module) -> nn.Module:
    copy = bare_copy(part)
    set_hook(copy, None)
    return copy


def on(device: torch.device) -> Place:
    """All of a copy on one device."""
    return lambda _: device


def leaf(place: Place) -> Copied:
    """A copy that gathers gradients of its own."""

    def copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(place(name), copy=True).requires_grad_(tensor.requires_grad)

    return copied


def connected(places: Sequence[Place]) -> list[Copied]:
    """Copies whose gradients are the original's, added up in their order."""
    made: dict[int, tuple[torch.Tensor, ...]] = {}

    def of(index: int) -> Copied:
        apart = leaf(places[index])

        def copied(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.requires_grad:
                return apart(name, tensor)
            if id(tensor) not in made:
                devices = [place(name) for place in places]
                made[id(tensor)] = _Everywhere.apply(tensor, *devices)  # type: ignore[no-untyped-call]
            return made[id(tensor)][index]

        return copied

    return [of(index) for index in range(len(places))]


@final
class _Everywhere(torch.autograd.Function):
    """A tensor on several devices. One by one, their gradients would be added up in the order in
    which backward comes to them, and sums of three differ in the last bit by that."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, *devices: torch.device) -> tuple[torch.Tensor, ...]:
        ctx.device = tensor.device
        return tuple(tensor.to(device, copy=True) for device in devices)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        total = reduce(torch.add, (gradient.to(ctx.device) for gradient in gradients))
        return total, *(None for _ in gradients)


def settle_buffers(original: nn.Module, replicas: Sequence[nn.Module]) -> None:
    """Running statistics are afterwards the mean over the replicas; other buffers the first's."""
    means = {id(buffer) for buffer in _running(original)}
    whose = [[*replica.buffers()] for replica in replicas]
    with torch.no_grad():
        for buffer, *others in zip(original.buffers(), *whose, strict=True):
            if id(buffer) in means:
                here = [other.to(buffer.device) for other in others]
                buffer.data.copy_(torch.stack(here).mean(dim=0))
            elif others[0] is not buffer:
                buffer.data.copy_(others[0])


def _running(module: nn.Module) -> list[torch.Tensor]:
    return [
        buffer
        for norm in batch_norm.norms(module)
        if norm.training
        for buffer in norm.buffers(recurse=False)
        if buffer.is_floating_point()
    ]


Device = torch.device | str
Devices = Sequence[Device]


def replicate(module: nn.Module, devices: Devices) -> list[nn.Module]:
    """A copy of `module` on each device. With gradients on, a backward pass through any of them
    ends in the module's own parameters, where they add up.

    devices: as torch.device or its name, one for each copy; on a CPU, "cpu" as often as copies are
    wanted.
    """
    devices = _as_devices(devices)
    if _on_cuda(devices):
        detached = not torch.is_grad_enabled()
        replicas = parallel.replicate(module, _numbers(devices), detach=detached)
        for part in (part for replica in replicas for part in replica.modules()):
            set_hook(part, None)  # torch takes it along, and it calls the original
        return list(replicas)
    places = [on(device) for device in devices]
    copied = connected(places) if torch.is_grad_enabled() else map(leaf, places)
    return [copy_of(module, each) for each in copied]


def scatter(batch: Any, devices: Devices) -> list[Any]:
    """A part of the batch for each device: tensors cut along dim 0, anything else whole. Fewer
    parts than devices where there are fewer samples.

    batch: a tuple, list or dict of tensors, nested or not; all of as many rows.

    Raises:
        ConfigurationError: tensors of different numbers of rows.
    """
    devices = _as_devices(devices)
    rows = rows_of(batch)
    if rows is None or rows == 0:
        return [batch]
    if _on_cuda(devices):
        parts: list[Any] = [*parallel.scatter(batch, _numbers(devices[:rows]))]
        return parts
    size = -(-rows // len(devices))
    return [cut_rows(batch, first, first + size) for first in range(0, rows, size)]


def parallel_apply(
    functions: Sequence[Callable[..., Any]], parts: Sequence[Any], devices: Devices, first: int = 0
) -> list[Any]:
    """`functions[i](*parts[i])` on device first + i, all at the same time. Functions are replicas,
    or take one along. What one of them raises is raised here once all have ended.

    Raises:
        ConfigurationError: fewer devices than parts, or other parts than functions.
    """
    devices = _as_devices(devices)[first:]
    if not len(functions) == len(parts) <= len(devices):
        raise ConfigurationError(
            "Each part has a replica and a device. Received: "
            f"{len(functions)} functions, {len(parts)} parts, {len(devices)} devices."
        )
    return results(
        [
            submit(f"dream-device-{index}", device, _applied, function, part)
            for index, (function, part, device) in enumerate(
                zip(functions, parts, devices, strict=False), first
            )
        ]
    )


def gather(outputs: Sequence[Any], device: Device) -> Any:
    """The replicas' outputs as one, on `device`: tensors joined along dim 0, numbers of shape ()
    as a vector. Gradients flow back to each."""

    def joined(*parts: Any) -> Any:
        if not isinstance(parts[0], torch.Tensor):
            return parts[0]
        rows = [part if part.dim() else part.reshape(1) for part in parts]
        return torch.cat([row.to(device) for row in rows])

    return tree_map(joined, *outputs)


def _applied(function: Callable[..., Any], part: Any) -> Any:
    return function(*part)


def _as_devices(devices: Devices) -> list[torch.device]:
    return [each if type(each) is torch.device else torch.device(each) for each in devices]


def _on_cuda(devices: Sequence[torch.device]) -> bool:
    return all(device.type == "cuda" for device in devices)


def _numbers(devices: Sequence[torch.device]) -> list[int]:
    return [device.index or 0 for device in devices]
