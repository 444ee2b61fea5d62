"""A thread for each device of a process: what is given to one runs in order, beside the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

import torch

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
    cached = torch.is_autocast_cache_enabled()

    def run(*args: Any) -> T:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for kind, dtype, enabled in casts:
                stack.enter_context(torch.autocast(kind, dtype, enabled, cached))
            if device.type == "cuda":
                stack.enter_context(torch.cuda.device(device))
            return act(*args)

    return run


def results(futures: list[Future[T]]) -> list[T]:
    """What they gave, in order, once all have ended; the first error where there was one."""
    failed = [error for future in futures if (error := future.exception()) is not None]
    if failed:
        raise failed[0]
    return [future.result() for future in futures]
