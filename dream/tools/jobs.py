"""Run a module in ranks, as `dream run` would start it, and collect what they leave in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dream._errors import ConfigurationError, WorkerFailed
from dream.launch import start
from dream.launch.ending import Outcome, explain
from dream.launch.job import Job
from dream.strategies.spec import Framework

_ASKED = "asked.json"


def check_enough(to: str, asked: Mapping[str, float]) -> None:
    """Refuse numbers below 1, and what is none. to: do what; asked: what they are called, as it is
    written before them, and they."""
    for called, value in asked.items():
        if not value >= 1:  # nan too
            raise ConfigurationError(
                f"Too little to {to}. Received: {called}{value:g}. Give at least 1."
            )


def run(
    module: str,
    folder: Path,
    asked: Mapping[str, object],
    *,
    n: int,
    frameworks: Sequence[Framework],
    timeout: float,
    words: Sequence[str] = (),
    strategy: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Outcome:
    """Run it to its end. asked: what `read_asked` gives there; the module's arguments are the
    words, and the folder. environ: beside the user's own."""
    (folder / _ASKED).write_text(json.dumps(asked))
    job = Job(
        command=("module", module, *words, str(folder)),
        n=n,
        strategy=strategy,
        frameworks=tuple(frameworks),
        show="none",
        timeout=timeout,
    )
    return start.run(replace(job, environ={**job.environ, **(environ or {})}))


def check(ended: Outcome) -> None:
    """Raise WorkerFailed where a rank failed, or took longer than it may."""
    if ended.exit_code != 0:
        raise WorkerFailed(
            explain(ended), rank=ended.cause.first.rank if ended.cause is not None else None
        )


def read_asked(folder: Path) -> Any:
    """Read, in a rank, what it is asked to do."""
    return json.loads((folder / _ASKED).read_text())


def answer(folder: Path, rank: int, figures: object) -> None:
    """Leave a rank's figures."""
    (folder / f"{rank}.json").write_text(json.dumps(figures))


def answers(folder: Path, n: int) -> list[Any]:
    """Read the figures of the first n ranks."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n)]
