"""`dream profile SCRIPT`: run a script for some steps, and show where their time goes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dream._errors import ConfigurationError, WorkerFailed
from dream.files.whole import check_output, write_json
from dream.launch import start
from dream.launch.command import at_dashes, named_script
from dream.launch.ending import explain
from dream.launch.guard import temporary_folder
from dream.launch.job import Job
from dream.tools.jobs import check_enough
from dream.tools.profile import report, spans
from dream.tools.profile.spans import ProfileRequest, RankProfile
from dream.tools.record import NO_BLOCK
from dream.tools.tables import screen

_TIMELINE = "HOROVOD_TIMELINE"


def main(argv: Sequence[str]) -> int:
    """Profile, and return the exit code. Raises ConfigurationError where nothing can be seen,
    WorkerFailed where the script fails."""
    own, behind = at_dashes(argv)
    given, theirs = _parser().parse_known_args(own)
    _check(given)
    job = Job(
        command=named_script(given.script, own, theirs, behind),
        n=given.n,
        strategy=given.strategy,
        timeout=given.timeout,
        show="none",
    )
    say = Console(stderr=True)
    say.print(Text(f"{given.script}: {given.steps} steps on {_ranks(given.n)} ..."))
    with temporary_folder("dream-profile-") as folder:
        request = ProfileRequest(folder, given.steps, given.warm_up)
        timeline = {} if given.trace is None else {_TIMELINE: str(folder / "ring.timeline")}
        ended = start.run(replace(job, environ={**job.environ, **timeline, **request.environ}))
        if ended.exit_code != 0:
            raise WorkerFailed(explain(ended))
        profiles = _checked(spans.read(folder), given.script, given.n)
        written = _write(given, profiles, folder)
    report.show(profiles, screen())
    for path in written:
        say.print(Text(f"written: {path}"), soft_wrap=True)
    return 0


def _ranks(n: int) -> str:
    return f"{n} rank{'s' if n > 1 else ''}"


def _check(given: argparse.Namespace) -> None:
    asked = {"-n ": given.n, "--steps ": given.steps, "--timeout ": given.timeout}
    check_enough("profile", asked)
    if given.warm_up < 1:
        raise ConfigurationError(
            f"The first step is not representative. Received: --warm-up {given.warm_up}. Give at "
            "least 1."
        )
    check_output("--json", given.json)
    check_output("--trace", given.trace)
    if given.report is not None:
        from dream.tools.profile import page

        page.check(given.report)


def _checked(profiles: Sequence[RankProfile], script: str, n: int) -> Sequence[RankProfile]:
    """Refuse what shows nothing: a script without a block, or without enough steps."""
    if not profiles or not profiles[0].framework:
        raise ConfigurationError(f"The script cannot be profiled. Received: {script}. {NO_BLOCK}")
    if len(profiles) < n:
        raise WorkerFailed(
            f"A rank ended without writing its record. Received: {len(profiles)} of {n}. It exited "
            "through os._exit."
        )
    if min(one.steps for one in profiles) < 1:
        raise ConfigurationError(
            f"Too few training steps were recorded. Received: {script}, which ended before a step "
            "that counts. Seen are an optimizer's steps in torch and Keras's fit; give a smaller "
            "--warm-up, or more data."
        )
    return profiles


def _write(given: argparse.Namespace, profiles: Sequence[RankProfile], folder: Path) -> list[Path]:
    written: list[Path] = []
    if given.json is not None:
        write_json(given.json, report.document(profiles))
        written.append(given.json)
    if given.trace is not None:
        write_json(given.trace, report.trace(profiles))
        written.append(given.trace)
        ring = folder / "ring.timeline"
        if ring.is_file():
            beside = given.trace.with_name(f"{given.trace.stem}.horovod.json")
            beside.write_bytes(ring.read_bytes())
            written.append(beside)
    if given.report is not None:
        from dream.tools.profile import page

        written.append(page.write(given.report, given.script, profiles))
    return written


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dream profile",
        usage="dream profile SCRIPT [options] [ARGS ...]\n       "
        "dream profile -m MODULE [options] [ARGS ...]\n       "
        "dream profile SCRIPT [options] -- [ARGS ...]",
        description="Run a script, unchanged, for some steps of training, and show where a step's "
        "time goes on every rank.",
        epilog="A step is one step of an optimizer in torch, one batch of Keras's fit. The script "
        "is ended after those that were asked for.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="a Python file with a `with dream.strategy(...)` block")
    add("-n", type=int, default=2, metavar="N", help="ranks on this host (2)")
    add("--strategy", metavar="NAME[:k=v,..]", help="in place of the script's")
    add("--steps", type=int, default=50, metavar="K", help="steps that count (50)")
    add("--warm-up", type=int, default=5, metavar="K", help="steps before them (5)")
    add("--timeout", type=float, default=600, metavar="S", help="seconds it may take (600)")
    add("--report", type=Path, metavar="DIR", help="write a page with pictures there")
    add("--trace", type=Path, metavar="FILE",
        help="write a trace for chrome://tracing or Perfetto; on the ring, Horovod's timeline "
        "beside it")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every figure to this file")
    return parser
