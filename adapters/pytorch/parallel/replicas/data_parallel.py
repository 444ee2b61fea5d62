"""The four primitives of one process that drives many devices: replicate a model, scatter a batch,
apply each replica to its part, gather the outputs.

    devices = [torch.device("cuda", 0), torch.device("cuda", 1)]    # or [torch.device("cpu")] * 2
    replicas = replicate(model, devices)
    parts = scatter((x, y), devices)
    losses = parallel_apply([partial(loss_of, replica) for replica in replicas], parts, devices)
    gather(losses, devices[0]).mean().backward()                    # gradients are the model's

On CUDA devices they are torch.nn.parallel's. On CPU devices, where torch has none, replicas are
copies that run in threads of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import parallel
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError
from dream.adapters.pytorch.parallel.replicas.copies import connected, copy_of, leaf, on
from dream.adapters.pytorch.parallel.replicas.workers import results, submit
from dream.adapters.pytorch.slot import set_slot

Devices = Sequence[torch.device]


def replicate(module: nn.Module, devices: Devices) -> list[nn.Module]:
    """A copy of `module` on each device. With gradients on, a backward pass through any of them
    ends in the module's own parameters, where they add up."""
    if _on_cuda(devices):
        detached = not torch.is_grad_enabled()
        replicas = parallel.replicate(module, _numbers(devices), detach=detached)
        for part in (part for replica in replicas for part in replica.modules()):
            set_slot(part, None)  # torch takes it along, and it calls the original
        return list(replicas)
    places = [on(device) for device in devices]
    copied = connected(places) if torch.is_grad_enabled() else map(leaf, places)
    return [copy_of(module, each) for each in copied]


def scatter(batch: Any, devices: Devices) -> list[Any]:
    """A part of the batch for each device: tensors cut along dim 0, anything else whole. Fewer
    parts than devices where there are fewer samples.

    batch: a tuple, list or dict of tensors, nested or not; all of as many rows.
    """
    rows = rows_of(batch)
    if rows is None or rows == 0:
        return [batch]
    if _on_cuda(devices):
        parts: list[Any] = [*parallel.scatter(batch, _numbers(devices[:rows]))]
        return parts
    size = -(-rows // len(devices))
    return [tree_map(_cut(first, first + size), batch) for first in range(0, rows, size)]


def parallel_apply(
    functions: Sequence[Callable[..., Any]], parts: Sequence[Any], devices: Devices
) -> list[Any]:
    """`functions[i](*parts[i])` on device i, all at the same time. Functions are replicas, or take
    one along. What one of them raises is raised here once all have ended."""
    if not len(functions) == len(parts) <= len(devices):
        raise ConfigurationError(
            "Each part has a replica and a device. Received: "
            f"{len(functions)} functions, {len(parts)} parts, {len(devices)} devices."
        )
    return results(
        [
            submit(f"dream-device-{index}", device, _applied, function, part)
            for index, (function, part, device) in enumerate(
                zip(functions, parts, devices, strict=False)
            )
        ]
    )


def gather(outputs: Sequence[Any], device: torch.device) -> Any:
    """The replicas' outputs as one, on `device`: tensors joined along dim 0, numbers of shape ()
    as a vector. Gradients flow back to each."""

    def joined(*parts: Any) -> Any:
        if not isinstance(parts[0], torch.Tensor):
            return parts[0]
        rows = [part if part.dim() else part.reshape(1) for part in parts]
        return torch.cat([row.to(device) for row in rows])

    return tree_map(joined, *outputs)


def rows_of(batch: Any) -> int | None:
    """The samples in a batch; None where there is no tensor of rows."""
    rows = {len(x) for x in tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()}
    if len(rows) > 1:
        raise ConfigurationError(
            "A batch is cut along dim 0 of its tensors, so all must have a row for each sample. "
            f"Received: tensors of {sorted(rows)} rows."
        )
    return rows.pop() if rows else None


def _applied(function: Callable[..., Any], part: Any) -> Any:
    return function(*part)


def _cut(first: int, stop: int) -> Callable[[Any], Any]:
    return lambda x: x[first:stop] if isinstance(x, torch.Tensor) and x.dim() else x


def _on_cuda(devices: Devices) -> bool:
    return all(device.type == "cuda" for device in devices)


def _numbers(devices: Devices) -> list[int]:
    return [device.index or 0 for device in devices]
