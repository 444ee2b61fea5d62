"""`dream run --on slurm`: a batch script with one `dream run` on each node, submitted by sbatch.

Before the time ends Slurm signals the step; the ranks save and leave with the exit code that says
"start me again", and the script puts the job back into the queue. It goes on from --checkpoint.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import final

from dream._errors import ConfigurationError
from dream.cluster import settings
from dream.launch.engines.engine import LaunchEngine, program, ranks_with_gpus
from dream.launch.engines.request import SIGNAL_BEFORE, Request, interpreter
from dream.launch.output import SCREEN

_HOW = "Submit from a host of the cluster; or --dry-run shows the script."

_SCRIPT = """#!/bin/bash
{options}

# The ranks of several hosts have this secret in common; it is made as the job starts.
export {token}="${{{token}:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')}}"
cd {folder} || exit 2
{start}
code=$?
{again}exit $code
"""
_ALONE = "srun --nodes=1 --ntasks=1 {step}{command}"
_SEVERAL = (
    'export DREAM_FIRST_HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
    "srun --ntasks={nodes} --ntasks-per-node=1 {step}bash -c {inner}"
)
_AGAIN = """if [ "$code" = {later} ]; then  # saved: the job goes on when it has time again
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60
fi
"""
_PORT = "$((15000 + SLURM_JOB_ID % 15000))"
"""Jobs side by side have ports of their own."""

_FAREWELL_SECONDS = 20
"""Of --signal-before: for launchers to end once their ranks have, and for the requeue."""

_PLAIN = re.compile(r"[\w@%+=:,./-]*")
_SPECIAL = re.compile(r"""([\\"'#])""")
_ESCAPED = r"\\\1"


@final
class Slurm(LaunchEngine):
    def written(self, request: Request) -> str:
        _check(request)
        again = _AGAIN.format(later=settings.GO_ON_LATER) if request.given.checkpoint else ""
        return _SCRIPT.format(
            options="\n".join(f"#SBATCH {_option(option)}" for option in _options(request)),
            token=settings.TOKEN,
            folder=shlex.quote(str(Path.cwd())),
            start=_start(request),
            again=again,
        )

    def start(self, request: Request) -> int:
        text = self.written(request)
        done = subprocess.run(
            [program("sbatch", _HOW), "--parsable"],
            input=text, text=True, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        if done.returncode:
            SCREEN.say(f"sbatch rejected the job: {done.stderr.strip()}")
            return done.returncode
        job = done.stdout.strip().partition(";")[0]
        SCREEN.say(f"Submitted as job {job}. Its output: {_output(request).replace('%j', job)}.")
        print(job)
        return 0


def _check(request: Request) -> None:
    ranks_with_gpus(request, "Slurm gives as many cores", spare=True)
    given = request.given
    if given.signal_before != SIGNAL_BEFORE and not given.checkpoint:
        raise ConfigurationError(
            "Without a checkpoint folder nothing can be saved before the time limit. Received: "
            f"--signal-before {given.signal_before}, no --checkpoint. Pass --checkpoint FOLDER."
        )
    if given.engine_time and not given.checkpoint:
        SCREEN.say("Without --checkpoint FOLDER nothing is saved before the job reaches --time.")


def _output(request: Request) -> str:
    return str(Path.cwd() / f"{request.name}-%j.out")


def _options(request: Request) -> list[str]:
    given = request.given
    found = [
        f"--job-name={request.name}",
        f"--nodes={request.nnodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={request.n}",
        f"--output={_output(request)}",
        "--open-mode=append",
    ]
    if given.gpus:
        found.append(f"--gpus-per-node={given.gpus}")
    if given.engine_time:
        found.append(f"--time={given.engine_time}")
    if given.checkpoint:
        # the steps' processes get it, not the script: those are the launchers, whose ranks save
        found += ["--requeue", f"--signal=TERM@{given.signal_before}"]
    return [*found, *given.engine_option]


def _option(option: str) -> str:
    """Write an option for sbatch, which reads double quotes and backslashes as a shell does, and a
    comment from # on."""
    name, equals, value = option.partition("=")
    if not equals or _PLAIN.fullmatch(value):
        return option
    return f'{name}="{_SPECIAL.sub(_ESCAPED, value)}"'


def _start(request: Request) -> str:
    """One task a node: each starts the node's ranks, and may use all of its cores."""
    dream = [interpreter(), "-m", "dream"]
    step = f"--cpus-per-task={request.n} "
    grace = _grace(request)
    if request.nnodes == 1:
        return _ALONE.format(step=step, command=shlex.join([*dream, *request.command(*grace)]))
    place = ["--nnodes", str(request.nnodes), "--node-rank", "$SLURM_NODEID",
             "--master-addr", "$DREAM_FIRST_HOST"]  # fmt: skip
    port = [] if request.given.master_port else ["--master-port", _PORT]
    words = [_quoted(word) for word in [*dream, *request.command(*place, *port, *grace)]]
    # a task's own number is known in the task alone
    inner = shlex.quote("exec " + " ".join(words))
    return _SEVERAL.format(nodes=request.nnodes, step=step, inner=inner)


def _grace(request: Request) -> tuple[str, ...]:
    """Give ranks that save nearly all the time that Slurm is asked for, unless told otherwise."""
    given = request.given
    if not given.checkpoint or "--grace" in request.options:
        return ()
    return ("--grace", f"{max(given.grace, given.signal_before - _FAREWELL_SECONDS):g}")


def _quoted(word: str) -> str:
    ours = ("$SLURM_NODEID", "$DREAM_FIRST_HOST", _PORT)
    return f'"{word}"' if word in ours else shlex.quote(word)
