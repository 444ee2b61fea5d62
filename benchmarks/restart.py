"""How long a job of two torch ranks stands still where one is killed: from the SIGKILL to the next
update, with `--max-restarts`, from memory and from disk, forked from the parent that stays and in
interpreters of their own. Beside them torchrun, which begins anew, and the import of torch.

    python benchmarks/restart.py [--rounds 5] [--markdown] [--json FILE]
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Timer
from time import perf_counter

from _measure import arguments, dream_command, interleave, ratios, write_json

SCRIPT = str(Path(__file__).with_name("_updates.py"))
OF_TORCH = str(Path(__file__).with_name("_updates_torch.py"))
_BOUND = 45.0
"""Seconds after which a job hangs."""


def main() -> int:
    asked = arguments(__doc__, rounds=5).parse_args()
    contenders = {
        "import torch": import_torch,
        "from memory": partial(dream, ["--every", "600"]),
        "from disk": partial(dream, ["--every", "0.1s", "--commit-every", "0"]),
        "from memory, --no-warm": partial(dream, ["--every", "600", "--no-warm"]),
        "torchrun, anew": torchrun,
    }
    times = interleave(contenders, rounds=asked.rounds, warmup=0)
    print(ratios(times, unit="s", markdown=asked.markdown))
    write_json(asked.json, {"seconds": times})
    return 0


def import_torch() -> float:
    begin = perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return perf_counter() - begin


def dream(options: list[str]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        kept = ["--checkpoint", f"{folder}/kept", "--max-restarts", "1"]
        return stands_still([dream_command(), "run", "-n", "2", *kept, *options, SCRIPT])


def torchrun() -> float:
    how = ["--nproc-per-node", "2", "--max-restarts", "1", "--master-port", "0"]
    return stands_still([sys.executable, "-m", "torch.distributed.run", *how, OF_TORCH])


def stands_still(command: list[str]) -> float:
    """Return the seconds from the end of rank 0 to the next update; infinity where none comes."""
    with tempfile.TemporaryDirectory() as folder:
        enough = Path(folder, "enough")
        with subprocess.Popen(
            [*command, str(enough)], env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        ) as job:  # fmt: skip
            assert job.stdout is not None
            hung = Timer(_BOUND, _end, [job.pid])
            hung.start()
            seconds = float("inf")
            said = [job.stdout.readline().split() for _ in range(40)]
            if said[-1]:  # it has come so far
                first = int(said[-1][1])
                begin = perf_counter()
                os.kill(first, signal.SIGKILL)
                while (line := job.stdout.readline().split()) and int(line[1]) == first:
                    pass  # what it had said before
                seconds = perf_counter() - begin if line else seconds
                enough.touch()
            job.wait()
            hung.cancel()
    return seconds


def _end(process: int) -> None:
    """Kill a launcher and what it has started, which holds its output open."""
    children = Path(f"/proc/{process}/task/{process}/children")
    started = children.read_text().split() if children.exists() else []
    for each in (process, *map(int, started)):
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
