"""`dream verify`'s command line. Its options may come before the script or after it; what it does
not know is the script's, and everything behind `--`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dream._errors import ConfigurationError
from dream.files.whole import check_output
from dream.launch.command import script_command


@dataclass(frozen=True, slots=True)
class Asked:
    """command: what each rank's interpreter runs. strategies: empty for the sensible ones.

    timeout: seconds that one run may take.
    """

    command: tuple[str, ...]
    n: int
    strategies: tuple[str, ...]
    steps: int
    timeout: float
    json: Path | None


def parse(argv: Sequence[str]) -> Asked:
    """What is asked for, checked."""
    own, behind = _at_dashes(list(argv))
    given, theirs = _parser().parse_known_args(own)
    for what, value in (("-n", given.n), ("--steps", given.steps), ("--timeout", given.timeout)):
        if not value >= 1:  # nan too
            raise ConfigurationError(
                f"Too little to verify. Received: {what} {value:g}. Give at least 1."
            )
    check_output("--json", given.json)
    return Asked(
        command=script_command(given.script, [*theirs, *behind], module=False),
        n=given.n,
        strategies=tuple(dict.fromkeys(given.strategy)),
        steps=given.steps,
        timeout=given.timeout,
        json=given.json,
    )


def _at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    place = argv.index("--") if "--" in argv else len(argv)
    return argv[:place], argv[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dream verify",
        usage="dream verify SCRIPT [options] [ARGS ...]\n       "
        "dream verify SCRIPT [options] -- [ARGS ...]",
        description="Run a script, unchanged, under single and under strategies, and say whether "
        "they learn the same.",
        epilog="A step is one backward pass of a loop, one call of train_step, or one batch of "
        "fit (as many as steps_per_execution, where Keras takes several at once). The script runs "
        "several times, where you are: what it writes is written again. The exit code is 0 where "
        "every strategy equals single, 1 where one differs or fails, 2 where there is nothing to "
        "hold it against.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="a Python file with a `with dream.strategy(...)` block")
    add("-n", type=int, default=2, metavar="N", help="replicas of every strategy (2)")
    add("--strategy", action="append", default=[], metavar="NAME[:k=v,..]",
        help="may be repeated; default: mirrored, and horovod where it is built")  # fmt: skip
    add("--steps", type=int, default=20, metavar="K",
        help="after how many steps of training the script is ended (20)")  # fmt: skip
    add("--timeout", type=float, default=300, metavar="S", help="seconds one run may take (300)")
    add("--json", type=Path, metavar="FILE", help="write every figure to this file")
    return parser
