"""One cell: a job of its own, started by `dream run` as a user would start it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import time

from dream.compare import record, worker
from dream.compare.cells import Cell
from dream.compare.outcome import Broken, Finished, Outcome
from dream.compare.settings import Settings

_SCRIPT = """\
import sys
from pathlib import Path

from dream.compare.worker import main

main(Path(sys.argv[1]))
"""
"""Lives in the cell's folder, so that nothing of ours shadows a module of the task's."""

_GRACE = 10.0
"""Seconds that the launcher has to end its ranks before it is killed itself."""
_TAIL = 15
"""Lines of output that tell why a job ended."""


def run(cell: Cell, settings: Settings, folder: Path) -> Outcome:
    """Run the cell to its end, in a folder of its own. Never raises for what the job does."""
    task = settings.tasks[cell.kind.flavour]
    said = {"task": task, "job": asdict(settings.job)}
    (folder / worker.JOB).write_text(json.dumps(said))
    started = time()
    code, output = _call(command(cell, folder), settings.timeout, folder / "output.txt")
    if code is None:
        return Broken(_last_lines(f"Not done after {settings.timeout:g} s.", output), True)
    if code != 0:
        return Broken(_last_lines(f"The job ended with exit code {code}.", output))
    return _collect(cell, folder, started)


def command(cell: Cell, folder: Path) -> list[str]:
    """The command line of a cell."""
    script = folder / "cell.py"
    script.write_text(_SCRIPT)
    options = ["-n", str(cell.processes), "--strategy", cell.strategy]
    options += ["--framework", cell.kind.backend]
    return [sys.executable, "-m", "dream.cli", "run", *options, str(script), str(folder)]


def _call(line: Sequence[str], timeout: float, output: Path) -> tuple[int | None, str]:
    """The exit code, None after `timeout` seconds, and what was printed."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    return code, output.read_text(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let the launcher end its ranks; kill it where it does not."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _collect(cell: Cell, folder: Path, started: float) -> Outcome:
    ranks = range(cell.processes)
    try:
        records = tuple(record.read(folder, rank) for rank in ranks)
    except FileNotFoundError as error:
        return Broken(f"A rank left no record: {Path(error.filename).name} is not there.")
    parameters = tuple(record.read_parameters(folder, rank) for rank in ranks)
    return Finished(records, parameters, max(r.first_step for r in records) - started)


def _last_lines(sentence: str, output: str) -> str:
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return "\n".join([sentence, *lines[-_TAIL:]])
