"""Prints the whole table: script x strategy -> difference, or what was said.

python tests/strangers/strangers_table.py [SCRIPT ...] [--framework torch] [--strategy mirrored]
    [--ranks 2] [--device cuda] [--out FILE] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

from strangers_job import Outcome, Plain, judge, run
from strangers_rows import EQUAL, Row, in_one_process, rows
from strangers_worker import DEVICE

from dream.launch.forks.forked import SERVER, serving

HEAD = "| script | framework | strategy | ranks | parameters | logged | as expected | said |"
WIDTH = 160  # of what was said


def main() -> None:
    options = _options()
    if options.device:
        os.environ[DEVICE] = options.device
    wanted = [row for row in rows() if _is_wanted(row, options)]
    with tempfile.TemporaryDirectory() as room, _fork_server():
        folder = Path(options.keep or room).absolute()
        plain = Plain(folder / "plain")
        plain.run(wanted)
        _print(options, HEAD)
        _print(options, "|---" * HEAD.count(" | ") + "|---|")
        done: set[tuple[str, ...]] = set()
        wrong = sum(_cells(row, options, plain, folder, done) for row in wanted)
    sys.exit(min(wrong, 1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Scripts of strangers, against themselves.")
    parser.add_argument("scripts", nargs="*", help="names; all, if none")
    parser.add_argument("--framework", action="append")
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--ranks", action="append", type=int)
    parser.add_argument("--out", help="a file that the lines are appended to")
    parser.add_argument("--device", help="move torch's scripts to it, as cuda")
    parser.add_argument("--keep", help="a folder for every rank's output")
    return parser.parse_args()


def _is_wanted(row: Row, options: argparse.Namespace) -> bool:
    named = not options.scripts or row.script in options.scripts
    return named and (not options.framework or row.framework in options.framework)


def _cells(
    row: Row,
    options: argparse.Namespace,
    plain: Plain,
    folder: Path,
    done: set[tuple[str, ...]],
) -> int:
    """Run a row's cells that are not `done`; the number of those that are not as they should be."""
    wrong = 0
    for strategy, ranks in _asked(row, options):
        cell = (row.framework, row.script, strategy, str(ranks))
        if cell in done:
            continue
        done.add(cell)
        begin = time.monotonic()
        place = folder / f"{row.framework}.{row.script}.{strategy}.{ranks}"
        place.mkdir(parents=True, exist_ok=True)
        outcome = run(row, strategy, ranks, plain, place)
        (place / "output.txt").write_text(outcome.output)
        fault = judge(row, strategy, outcome)
        wrong += bool(fault)
        _print(options, _line(row, strategy, ranks, outcome, fault))
        print(f"  {time.monotonic() - begin:.1f} s", file=sys.stderr)
    return wrong


def _asked(row: Row, options: argparse.Namespace) -> list[tuple[str, int]]:
    """A row's cells, or those of the strategies and ranks that were asked for."""
    if not (options.strategy or options.ranks):
        return row.cells()
    strategies = options.strategy or row.strategies
    return [
        (strategy, ranks)
        for strategy in strategies
        for ranks in ([1] if in_one_process(strategy) else options.ranks or row.ranks)
    ]


def _line(row: Row, strategy: str, ranks: int, outcome: Outcome, fault: str) -> str:
    figures = [f"{outcome.difference:.1e}", f"{outcome.logged:.1e}"]
    if not outcome.ended:
        figures = ["error", "hangs" if "hangs: given up" in outcome.output else ""]
    said = [line for line in outcome.lines() if "uses shared_memory" not in line]
    expected = row.expected(strategy)
    said = [line for line in said if expected in line] or said if expected != EQUAL else said
    said = [f"most: {outcome.worst}", *said] if fault and outcome.worst else said
    words = " / ".join(line[:WIDTH].replace("|", "\\|") for line in said[:4])
    cells = [row.script, row.framework, strategy, str(ranks), *figures]
    return "| " + " | ".join([*cells, "NO" if fault else "yes", words]) + " |"


def _print(options: argparse.Namespace, line: str) -> None:
    print(line, flush=True)
    if options.out:
        with Path(options.out).open("a") as file:
            file.write(line + "\n")


@contextmanager
def _fork_server() -> Iterator[None]:
    """Ranks are forked from a process that has imported their framework, where that can be."""
    if SERVER in os.environ or not hasattr(os, "pidfd_open"):
        yield
        return
    with serving() as server:
        os.environ[SERVER] = server
        yield
        del os.environ[SERVER]


if __name__ == "__main__":
    main()
