"""`dream verify`: run a script, unchanged, under single and under strategies, and compare.

Its options may come before the script or after it; what it does not know is the script's, and
everything behind `--`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.text import Text

from dream._errors import ConfigurationError
from dream.files.whole import check_output, write_json
from dream.launch.command import at_dashes, named_script
from dream.launch.guard import temporary_folder
from dream.tools import placing
from dream.tools.jobs import check_enough
from dream.tools.placing import PLAIN, SINGLE, Placement
from dream.tools.record import NO_BLOCK, SEEN
from dream.tools.tables import screen
from dream.tools.verify import causes, report, runs
from dream.tools.verify.causes import Diagnosis, find_causes
from dream.tools.verify.judge import Judged, RunVerdict, judge, measure_noise
from dream.tools.verify.runs import Broken, Ran, ScriptRunner, VerifyRequest


def parse(argv: Sequence[str]) -> VerifyRequest:
    """Read the command line, checked."""
    own, behind = at_dashes(argv)
    given, theirs = _parser().parse_known_args(own)
    asked = {"-n ": given.n, "--steps ": given.steps, "--timeout ": given.timeout}
    check_enough("verify", asked)
    check_output("--json", given.json)
    return VerifyRequest(
        command=named_script(given.script, own, theirs, behind),
        n=given.n,
        strategies=tuple(dict.fromkeys(given.strategy)),
        steps=given.steps,
        timeout=given.timeout,
        json=given.json,
        quick=given.quick,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dream verify",
        usage="dream verify SCRIPT [options] [ARGS ...]\n       "
        "dream verify -m MODULE [options] [ARGS ...]\n       "
        "dream verify SCRIPT [options] -- [ARGS ...]",
        description="Run a script, unchanged, without dream's doing, under single and under "
        "strategies, and say whether they learn the same.",
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
    add("--quick", action="store_true", help="look for no causes of what differs")
    add("--json", type=Path, metavar="FILE", help="write every figure to this file")
    return parser


Say = Callable[[str], None]


def main(argv: Sequence[str]) -> int:
    """Verify, and return the exit code: 0 where all are equal, 1 where not. Raises
    ConfigurationError where there is nothing to hold anything against."""
    asked = parse(argv)
    runs.check_requests(asked.strategies or ["mirrored"], asked.n)
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    with temporary_folder("dream-verify-") as root:
        scripts = ScriptRunner(asked, root)
        single = _single(scripts, asked, say)
        framework = runs.framework_of(single.first.framework)
        chosen = runs.chosen(asked.strategies, framework, asked.n)
        rows = [*_plain(single, scripts, say)]
        rows += [_row(cell, single, scripts, say) for cell in chosen or [SINGLE]]
        bad = [] if asked.quick else [row for row in rows if not row.good]
        found = {row.cell.strategy: _causes(row, single, scripts, say) for row in bad}
    report.show(rows, single, found, screen())
    if asked.json is not None:
        write_json(asked.json, report.document(rows, single, found))
    return 0 if all(row.good for row in rows) else 1


def _single(scripts: ScriptRunner, asked: VerifyRequest, say: Say) -> Ran:
    """Run the script on one device, which all else is held against."""
    script = asked.command[1]
    ran = scripts.single()
    if isinstance(ran, Broken):
        raise ConfigurationError(
            "The script fails under single, so there is nothing to compare a strategy with. "
            f"Received: {script}. {ran.brief}"
        )
    if not ran.first.framework:
        raise ConfigurationError(f"The script cannot be verified. Received: {script}. {NO_BLOCK}")
    if not ran.losses:
        raise ConfigurationError(
            f"No loss was computed. Received: {script}, which entered a block and ended. {SEEN}"
        )
    say(f"single: {len(ran.losses)} steps{report.batches(ran)}, {ran.seconds:.1f} s")
    return ran


def _plain(single: Ran, scripts: ScriptRunner, say: Say) -> Iterator[Judged]:
    """Run the script as if it had no block, where it makes sense without one."""
    start = monotonic()
    ran = scripts.single("plain")
    if isinstance(ran, Broken) and not ran.timed_out:
        say(f"{PLAIN}: not held, since without its block the script fails: {ran.brief}")
        return
    judged = judge(PLAIN, ran, single)
    say(f"{PLAIN}: {judged.verdict}, {monotonic() - start:.1f} s")
    yield judged


def _row(cell: Placement, single: Ran, scripts: ScriptRunner, say: Say) -> Judged:
    blocked = runs.obstacle(cell, runs.framework_of(single.first.framework))
    if blocked:
        say(f"{cell}: cannot run, {blocked}")
        return Judged(cell, RunVerdict.UNAVAILABLE, f"It cannot run here: {blocked}.")
    why = placing.departs(cell.strategy)
    if why:
        said = "It is not meant to learn exactly what one device does"
        say(f"{cell}: not run, {why}")
        return Judged(
            cell, RunVerdict.INEXACT, f"{said}: {why}. dream compare judges how it learns."
        )
    start = monotonic()
    judged = judge(
        cell,
        scripts.run(cell),
        single,
        lambda: measure_noise(scripts, single, cell.parts),
    )
    say(f"{cell}: {judged.verdict}, {monotonic() - start:.1f} s")
    return judged


def _causes(row: Judged, single: Ran, scripts: ScriptRunner, say: Say) -> list[Diagnosis]:
    if row.ran is None:
        return []
    say(f"{row.cell}: looking for the cause ...")
    if row.cell == PLAIN:
        return [causes.deterministic(single, scripts)]
    return find_causes(row, single, scripts)
