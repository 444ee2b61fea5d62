"""What many ranks cost to start: until the last one is at its script's first line, after its
imports, and the memory (PSS) of all of the job's processes then.

    python benchmarks/many_ranks.py [--imports "dream, torch"] [--ranks 8] [--rounds 5] [--markdown]
        [--json FILE]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

from _measure import arguments, dream_command, interleave, ratios, write_json

SCRIPT = """
import sys, time
from pathlib import Path
import {imports}
print("first line", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--imports", default="torch", help="what the script imports (torch)")
    asked = parser.parse_args()
    memory: dict[str, list[float]] = {}
    many = f"{asked.ranks} ranks"
    contenders = {
        "1 rank": ["-n", "1"],
        many: ["-n", str(asked.ranks)],
        f"{many} --no-warm": ["-n", str(asked.ranks), "--no-warm"],
    }
    times = interleave(
        {name: partial(start, asked.imports, options, memory.setdefault(name, []))
         for name, options in contenders.items()},
        rounds=asked.rounds, warmup=1,
    )  # fmt: skip
    print(ratios(times, unit="s", markdown=asked.markdown))
    print(ratios(memory, unit="MB", markdown=asked.markdown))
    write_json(asked.json, {"seconds": times, "PSS in MB": memory})
    return 0


def start(imports: str, options: list[str], memory: list[float]) -> float:
    """Return the seconds until every rank has said its first line."""
    with tempfile.TemporaryDirectory() as folder:
        done, script = Path(folder, "done"), Path(folder, "script.py")
        script.write_text(SCRIPT.format(imports=imports))
        begin = perf_counter()
        with subprocess.Popen(
            [dream_command(), "run", *options, "--all-output", str(script), str(done)],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True,
        ) as job:  # fmt: skip
            assert job.stdout is not None
            for _ in range(int(options[1])):
                if not job.stdout.readline():
                    raise RuntimeError("The job failed; its message is above.")
            seconds = perf_counter() - begin
            memory.append(sum(map(pss, family(job.pid))) / 1024)
            done.touch()
    return seconds


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    children = [
        int(child)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in file.read_text().split()
    ]
    return [pid, *(each for child in children for each in family(child))]


def pss(pid: int) -> int:
    """A process's memory in kB, what it shares counted by the share."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


if __name__ == "__main__":
    sys.exit(main())
