"""`dream.launch`: the launcher as a function, for notebooks and tests.

The function, its arguments and results travel by cloudpickle where that is installed, which takes
functions of `__main__` and lambdas; else by pickle.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dream._errors import ConfigurationError, NotInstalled, WorkerFailed


def launch(
    function: Callable[..., Any],
    /,
    *args: Any,
    n: int = 2,
    framework: str | None = None,
    strategy: str | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    on: str | None = None,
    nnodes: int = 1,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on `n` fresh ranks; their results, in rank order.

    framework, strategy: as `dream run --framework` and `--strategy` take them.
    timeout: seconds for the whole job; None for no limit.
    env: added to this process's environment for the ranks.
    on: "ray" starts them on the Ray cluster that runs (RAY_ADDRESS, or this machine's); nnodes:
        there, on so many hosts, `n` on each.
    Raises WorkerFailed with `rank` and `traceback` where a rank fails.
    """
    from dream._log import logger  # on use: `import dream` stays quick
    from dream.cluster.launchers import several
    from dream.launch.ending import explain
    from dream.launch.forks.warm import warm
    from dream.launch.guard import temporary_folder
    from dream.launch.job import Job, frameworks
    from dream.launch.start import run

    _check(function)
    if row := next(iter(several(os.environ)), None):
        logger.warning(
            "dream.launch was called in one of several processes of another launcher: each call "
            "starts a separate job. Received: %s=%s of %s. Call it in only one of them",
            row.size, os.environ[row.size], row.source,
        )  # fmt: skip
    packed = dump((function, args, kwargs), "The function or an argument")
    if on is not None or nnodes != 1:
        _check_engine(on, timeout)
        call = dump(list(sys.path), "sys.path") + packed
        asked = {"n": n, "nnodes": nnodes, "framework": framework, "strategy": strategy}
        return _on_ray(call, {**(env or {})}, **asked)
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
        with warm(job) as job:
            outcome = run(job)
        if outcome.exit_code != 0:
            cause = outcome.cause
            raise WorkerFailed(
                explain(outcome),
                rank=cause.first.rank if cause else None,
                traceback=(cause.victim or cause.first).text if cause else "",
            )
        return [_result(folder, rank) for rank in range(n)]


def _check_engine(on: str | None, timeout: float | None) -> None:
    if on != "ray" or timeout is not None:
        raise ConfigurationError(
            f"dream.launch starts ranks here, or on a Ray cluster. Received: on={on!r}, "
            f"timeout={timeout}. Pass on='ray', without timeout=; or neither on= nor nnodes=."
        )


def _on_ray(call: bytes, env: dict[str, str], **asked: Any) -> list[Any]:
    import pickle

    from dream.launch.engines.ray import launch_function  # on use: ray is an extra

    ended = launch_function(call, env, **asked)
    if ended.code != 0:
        raise WorkerFailed(ended.said, rank=ended.rank, traceback=ended.text)
    return [pickle.loads(result) if result else None for result in ended.results]


def _check(function: Callable[..., Any]) -> None:
    if not callable(function):
        raise ConfigurationError(
            f"dream.launch calls a function. Received: {function!r}. Give the function itself, "
            "and its arguments after it."
        )
    if getattr(function, "__module__", None) == "__main__" and not _carries_main():
        raise NotInstalled(
            "Sending a function of a notebook or script needs cloudpickle, which is not installed. "
            f"Received: {function!r}. Run: pip install cloudpickle; or move it to a module."
        )


def _result(folder: Path, rank: int) -> Any:
    """Load what a rank returned; None of one that left without returning, as servers do."""
    import pickle

    file = folder / f"result{rank}"
    return pickle.loads(file.read_bytes()) if file.exists() else None


def dump(value: object, what: str) -> bytes:
    """Pack a value. ConfigurationError for what cannot travel."""
    import pickle

    try:
        data: bytes = _pickler().dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        text = repr(value)
        received = text if len(text) <= 100 else f"{text[:97]}..."
        raise ConfigurationError(
            f"{what} cannot be sent to another process. Received: {received} ({error}). Use a "
            "function from an importable module and picklable values."
        ) from error
    return data


def _carries_main() -> bool:
    """Whether functions written in a notebook or script travel."""
    return bool(_pickler().__name__ == "cloudpickle")


def _pickler() -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        import pickle

        return pickle
    return cloudpickle
