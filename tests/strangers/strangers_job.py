"""Runs scripts plain and under `dream run`, and holds what they left against each other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from launch_scripts import keras_on
from strangers_rows import EQUAL, Row
from strangers_worker import HISTORY, Figures

from dream.launch.forks.foresight import IMPORTS

HERE = Path(__file__).parent
WORKER = HERE / "strangers_worker.py"
RUN = ["-c", "from dream.cli import main; main()", "run"]
SECONDS = 180.0  # of a job; it says who is waited for long before
HISTORY_TOLERANCE = 1e-5  # of a logged number, by its size
_OF_DREAM = re.compile(
    r"\bdream\b|dream\.|Unsupported|ConfigurationError|Desynchronized|DreamError"
)
_LOGGED = "dream: "
_ERROR = re.compile(r"(\[\w+\]: ?)?(\w+\.)*\w*(Error|Unsupported|Desynchronized|Failed)\b")
_TORN = ("DREAM_STRATEGY", "DREAM_FRAMEWORK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script ended under a strategy.

    difference: the greatest of any parameter or buffer of any rank; nan where there is none.
    logged: the same of `history`, by the numbers' size.
    worst: which differed most, and on which rank.
    """

    ended: bool
    output: str
    difference: float = float("nan")
    logged: float = float("nan")
    worst: str = ""

    def within(self, tolerance: float) -> bool:
        logged = max(tolerance, HISTORY_TOLERANCE)
        return self.ended and self.difference <= tolerance and self.logged <= logged

    def says(self, words: str) -> bool:
        """Whether the words stand in a line that dream logged, or in the error that ended it."""
        lines = (" ".join(line.split()) for line in self.output.splitlines())
        return any(words in line for line in lines if self._is_said(line))

    def _is_said(self, line: str) -> bool:
        return _LOGGED in line or (not self.ended and _ERROR.match(line) is not None)

    def lines(self) -> list[str]:
        """Those that dream wrote, as it seems."""
        lines = (" ".join(line.split()) for line in self.output.splitlines())
        found = (line for line in lines if _OF_DREAM.search(line) and 'File "' not in line)
        return list(dict.fromkeys(found))


@dataclass(slots=True)
class Plain:
    """What scripts left without dream; each is run once, and again when it has been changed."""

    folder: Path
    found: dict[tuple[str, str], Figures] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)

    def run(self, rows: Iterable[Row]) -> None:
        """Run the scripts of these rows that have not been, a process for each framework."""
        wanted: dict[str, list[str]] = {}
        for row in rows:
            file, script = self.folder / row.framework / f"{row.script}.npz", path(row)
            if (row.framework, row.script) in self.found:
                continue
            if file.exists() and file.stat().st_mtime > script.stat().st_mtime:
                self.found[row.framework, row.script] = _load(file)
            elif str(script) not in (scripts := wanted.setdefault(row.framework, [])):
                scripts.append(str(script))
        for framework, scripts in wanted.items():
            self._run(framework, scripts)

    def _run(self, framework: str, scripts: list[str]) -> None:
        if not scripts:
            return
        place = self.folder / framework
        place.mkdir(parents=True, exist_ok=True)
        line = [sys.executable, str(WORKER), "plain", framework, str(place), *scripts]
        output = _end(line, _environment(framework), place, SECONDS + 20 * len(scripts))[1]
        for script in map(Path, scripts):
            file = place / f"{script.stem}.npz"
            log = place / f"{script.stem}.room" / "output.log"
            if file.exists():
                self.found[framework, script.stem] = _load(file)
            else:
                told = log.read_text() if log.exists() else output
                self.failed[framework, script.stem] = f"fails by itself:\n{told[-3000:]}"

    def why_not(self, row: Row) -> str:
        """What a script says that fails without dream; empty where it does not."""
        key = row.framework, row.script
        if key not in self.found and key not in self.failed:
            self.run([row])
        return self.failed.get(key, "")

    def __getitem__(self, row: Row) -> Figures:
        return self.found[row.framework, row.script]


def path(row: Row) -> Path:
    return HERE / row.framework.partition("-")[0] / f"{row.script}.py"


def run(row: Row, strategy: str, ranks: int, plain: Plain, folder: Path) -> Outcome:
    """The row's script under a strategy, on so many ranks, against the plain script."""
    if why := plain.why_not(row):
        return Outcome(False, why)
    room, logs = folder / "room", folder / "logs"
    room.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, *RUN, "-n", str(ranks), "--log-dir", str(logs)]
    line += [str(WORKER), "rank", row.framework, str(path(row)), strategy, str(folder)]
    code, output = _end(line, _environment(row.framework), room, SECONDS)
    texts = [output, *(log.read_text(errors="replace") for log in sorted(logs.glob("*")))]
    files = [folder / f"rank{rank}.npz" for rank in range(ranks)]
    if code != 0 or not all(file.exists() for file in files):
        return Outcome(False, "\n".join(texts))
    return _compared(plain[row], [_load(file) for file in files], "\n".join(texts))


def judge(row: Row, strategy: str, outcome: Outcome) -> str:
    """What is wrong with an outcome, by what its row expects; empty where nothing is."""
    expected = row.expected(strategy)
    if outcome.within(row.tolerance):
        return ""
    if expected != EQUAL and outcome.says(expected):
        return ""
    if not outcome.ended:
        return f"ended with an error:\n{outcome.output[-3000:]}"
    if row.logs and outcome.difference <= row.tolerance and outcome.says(row.logs):
        return ""
    said = "" if expected == EQUAL else f", and not said: {expected!r}"
    return (
        f"parameters differ by {outcome.difference:.1e} (allowed {row.tolerance:.0e}), "
        f"what was logged by {outcome.logged:.1e}; most: {outcome.worst}{said}"
    )


def _compared(plain: Figures, ranks: list[Figures], output: str) -> Outcome:
    difference, logged, worst = 0.0, 0.0, ""
    for rank, figures in enumerate(ranks):
        if missing := plain.keys() ^ figures.keys():
            return Outcome(True, output, np.inf, np.inf, f"rank {rank}: only one has {missing}")
        for name, right in plain.items():
            apart = _apart(figures[name], right, relative=name == HISTORY)
            if name == HISTORY:
                logged = max(logged, apart)
            elif apart > difference:
                difference, worst = apart, f"{name} of rank {rank}"
    return Outcome(True, output, difference, logged, worst)


def _apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], *, relative: bool) -> float:
    """The greatest difference; infinite for other shapes, and where one alone is not finite."""
    if one.shape != other.shape:
        return float("inf")
    if not other.size:
        return 0.0
    apart = np.where(one == other, 0.0, one - other)  # also where both are infinite
    apart = np.abs(apart) / (np.maximum(1.0, np.abs(other)) if relative else 1.0)
    return float(np.nan_to_num(apart, nan=np.inf).max())


def _load(file: Path) -> Figures:
    with np.load(file) as arrays:
        return dict(arrays)


def _environment(framework: str) -> dict[str, str]:
    env = {name: text for name, text in os.environ.items() if name not in _TORN}
    env |= {"OMP_NUM_THREADS": "1", "DREAM_STALL_SECONDS": "300", "TF_CPP_MIN_LOG_LEVEL": "2"}
    env |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # a process that asks CUDA itself can't be forked
    backend = framework.removeprefix("keras-")
    imports = {IMPORTS: "torch"} if framework == "torch" else keras_on(backend)
    there = [name for name in imports[IMPORTS].split(",") if find_spec(name)]
    return env | imports | {IMPORTS: ",".join(there)}


def _end(line: list[str], env: Mapping[str, str], folder: Path, seconds: float) -> tuple[int, str]:
    """Run a command in a folder to its end, or till its time is over."""
    process = subprocess.Popen(
        line,
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # the launcher ends its ranks
        try:
            output, _ = process.communicate(timeout=60.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return -1, f"{output}\nhangs: given up after {seconds:.0f} s"
    return process.returncode, output
