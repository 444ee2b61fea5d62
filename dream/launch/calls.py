"""A function called on every rank: what `dream.launch` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dream._errors import ConfigurationError, NotInstalled, WorkerFailed
from dream.launch.command import explain
from dream.launch.guard import temporary_folder
from dream.launch.job import Job, frameworks
from dream.launch.outcome import Outcome
from dream.launch.pickles import can_carry_main, dump, load
from dream.launch.start import run


def call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    n: int,
    framework: str | None,
    strategy: str | None,
    timeout: float | None,
    env: Mapping[str, str] | None,
) -> list[Any]:
    """What `dream.launch` does."""
    _check(function)
    packed = dump((function, args, dict(kwargs)), "The function or an argument")
    with temporary_folder("dream-") as folder:
        file = folder / "call"
        file.write_bytes(dump(list(sys.path), "sys.path") + packed)
        job = Job(
            command=("function", str(file), str(folder / "result")),
            n=n,
            strategy=strategy,
            frameworks=frameworks(framework),
            timeout=timeout,
            environ={**os.environ, **(env or {})},
        )
        outcome = run(job)
        if outcome.exit_code != 0:
            raise _error(outcome)
        return [_result(folder, rank) for rank in range(n)]


def _check(function: Callable[..., Any]) -> None:
    if not callable(function):
        raise ConfigurationError(
            f"dream.launch calls a function. Received: {function!r}. Give the function itself, "
            "and its arguments after it."
        )
    if getattr(function, "__module__", None) == "__main__" and not can_carry_main():
        raise NotInstalled(
            f"A function of a notebook or script travels by cloudpickle, which is not installed. "
            f"Received: {function!r}. Run: pip install cloudpickle; or move it to a module."
        )


def _result(folder: Path, rank: int) -> Any:
    """None of a rank that left without returning, as servers do."""
    file = folder / f"result{rank}"
    return load(file.read_bytes()) if file.exists() else None


def _error(outcome: Outcome) -> WorkerFailed:
    cause = outcome.cause
    return WorkerFailed(
        explain(outcome),
        rank=cause.first.rank if cause else None,
        traceback=(cause.victim or cause.first).text if cause else "",
    )
