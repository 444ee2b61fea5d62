"""Runs one script, and leaves the numbers it ended with: a rank of a job, or a plain process.

strangers_worker.py rank FRAMEWORK SCRIPT STRATEGY FOLDER     in the block of a strategy
strangers_worker.py plain FRAMEWORK FOLDER SCRIPT...          without dream, each in a fresh fork

A script knows nothing of this. It leaves `model` or `models` (a model, a tensor, or a list or dict
of them) and may leave `history`, a list of the numbers it logged.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Figures = dict[str, "np.ndarray[Any, Any]"]
Whole = dict[str, Any]
MODULES = {"torch": "torch", "keras-tensorflow": "keras", "keras-torch": "keras"}
LATER = {"torch": "torch._dynamo"}  # which the first optimizer imports, for a second
HISTORY = "history"
DEVICE = "STRANGERS_DEVICE"
"""The variable that names a device to move torch's scripts to."""


def main() -> None:
    how, framework, *rest = sys.argv[1:]
    if how == "plain":
        sys.exit(_plain(framework, Path(rest[0]), [Path(script) for script in rest[1:]]))
    script, strategy, folder = rest
    _rank(framework, Path(script), strategy, Path(folder))


def _rank(framework: str, script: Path, strategy: str, folder: Path) -> None:
    importlib.import_module(MODULES[framework])  # as an import above a block
    import dream

    rank = os.environ.get("RANK", "0")
    sys.argv = [str(script)]
    name, options = _parsed(strategy)
    with dream.strategy(name, **options) as chosen:
        names = _run(script)
        figures = _figures(names, getattr(chosen, "full_state", None), name)
    _save(folder / f"rank{rank}.npz", figures)


def _parsed(strategy: str) -> tuple[str, dict[str, Any]]:
    """`sharded:zero=1` is a name and its options."""
    name, _, text = strategy.partition(":")
    pairs = (pair.split("=") for pair in text.split(",") if pair)
    return name, {key: int(value) if value.isdigit() else value for key, value in pairs}


def _plain(framework: str, folder: Path, scripts: list[Path]) -> int:
    """Import the framework once, and run each script in a process forked from here. The number of
    scripts that failed."""
    importlib.import_module(MODULES[framework])
    importlib.import_module(LATER.get(framework, MODULES[framework]))
    failed = 0
    for script in scripts:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os._exit(_alone(script, folder))
        failed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return failed


def _alone(script: Path, folder: Path) -> int:
    room = folder / f"{script.stem}.room"
    room.mkdir(parents=True, exist_ok=True)
    sys.argv = [str(script)]
    with (room / "output.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.chdir(room)
        try:
            names = _run(script)
            _save(folder / f"{script.stem}.npz", _figures(names, None, ""))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            return 1
    return 0


def _run(script: Path) -> dict[str, Any]:
    """Return the names that a script leaves. Moved to a device, where one is asked for."""
    device = os.environ.get(DEVICE)
    if not device:
        return runpy.run_path(str(script), run_name="__main__")
    from strangers_device import helpers, on_device

    names = {"__name__": "__main__", "__file__": str(script), **helpers(device)}
    exec(on_device(script.read_text(), str(script), device), names)
    return names


def _save(file: Path, figures: Figures) -> None:
    """Written whole or not at all: a rank may be ended at any time."""
    part = file.with_suffix(".part.npz")
    np.savez(part, allow_pickle=False, **figures)
    part.replace(file)


def _figures(names: dict[str, Any], full_state: Any, strategy: str) -> Figures:
    found: Figures = {}
    left = names.get("models", names.get("model"))
    for place, model in _models(left):
        whole = full_state if strategy == "sharded" else None
        for name, array in _arrays(model, whole):
            found[f"{place}{name}"] = array
    found[HISTORY] = np.asarray(names.get("history", []), dtype=np.float64).reshape(-1)
    return found


def _models(left: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(left, dict):
        yield from ((f"{key}.", model) for key, model in left.items())
    elif isinstance(left, list | tuple):
        yield from ((f"{index}.", model) for index, model in enumerate(left))
    else:
        yield "", left


def _arrays(model: Any, full_state: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Parameters and buffers of a torch model, variables of a Keras model, or a bare tensor."""
    if type(model).__module__.partition(".")[0] == "torch" and hasattr(model, "detach"):
        yield "tensor", _array(model)
    elif hasattr(model, "named_parameters") and not hasattr(model, "get_weights"):
        yield from _of_torch(model, full_state)
    else:
        yield from ((str(index), array) for index, array in enumerate(model.get_weights()))
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None:
            yield "iterations", np.asarray(int(optimizer.iterations), dtype=np.float64)


def _of_torch(model: Any, full_state: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    whole: Whole = {}
    if full_state is not None:
        with contextlib.suppress(KeyError):
            whole = full_state(model)
    for name, tensor in named.items():
        yield name.removeprefix("module."), _array(whole.get(name, tensor))


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value.astype(np.float64)
    value = value.full_tensor() if hasattr(value, "full_tensor") else value
    return np.asarray(value.detach().cpu().numpy(), dtype=np.float64)


if __name__ == "__main__":
    main()
