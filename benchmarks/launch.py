"""What starting a job costs: `dream run` beside torchrun and beside two bare processes.

    python benchmarks/launch.py [--rounds 9] [--markdown] [--json FILE]

The script makes one all-reduce on two ranks. Then `import dream` and `dream --help`, each in a
fresh interpreter, beside an interpreter that does nothing.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

from _measure import Times, arguments, dream_command, interleave, ratios, write_json

SCRIPT = str(Path(__file__).with_name("_one_all_reduce.py"))
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def main() -> int:
    asked = arguments(__doc__, rounds=9).parse_args()
    show = partial(ratios, unit="s", markdown=asked.markdown)
    jobs = read(
        {
            "torchrun": partial(run, [*TORCHRUN, SCRIPT]),
            "two bare processes": two_bare,
            "dream run": partial(run, [dream_command(), "run", "-n", "2", SCRIPT]),
        },
        asked.rounds,
    )
    print(show(jobs))
    print(show({name: jobs[name] for name in ("two bare processes", "dream run")}))
    commands = read(
        {
            "python -c pass": partial(run, [sys.executable, "-c", "pass"]),
            "import dream": partial(run, [sys.executable, "-c", "import dream"]),
            "dream --help": partial(run, [dream_command(), "--help"]),
        },
        asked.rounds,
    )
    print(show(commands))
    write_json(asked.json, {"seconds": jobs | commands})
    return 0


def read(contenders: dict[str, Callable[[], None]], rounds: int) -> Times:
    timed = {name: partial(seconds, start) for name, start in contenders.items()}
    return interleave(timed, rounds=rounds, warmup=1)


def seconds(start: Callable[[], None]) -> float:
    begin = perf_counter()
    start()
    return perf_counter() - begin


def run(command: Sequence[str]) -> None:
    environment = os.environ | ONE_THREAD
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=120)


def two_bare() -> None:
    """The least that can be: both ranks started at once, told where they are, waited for."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT], env=os.environ | ONE_THREAD | place | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    codes = [rank.wait(120) for rank in ranks]
    if any(codes):
        raise RuntimeError("A bare process failed; its traceback is above.")


if __name__ == "__main__":
    sys.exit(main())
