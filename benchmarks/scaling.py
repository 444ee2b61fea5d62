"""How cost grows: with ranks, with the model, with the message, and with hosts.

    python benchmarks/scaling.py [--only ranks|models|messages|hosts] [--steps 12] [--markdown]
        [--ranks 1 2 4 8 16] [--megabits 1000] [--json FILE]

Each figure stands beside what a formula says. In it n is the model's bytes, P the number of ranks,
C that of cores, and `alone` a step of ranks that tell each other nothing, in the same processes:

- a step of P ranks: that of one rank by itself, times P / C where that is more than 1, and the
  reduction of n among two ranks, times P / 2, since every rank reads and writes n in one memory;
- a step of a model: `alone` and a message of n;
- a message of n bytes: a + b n, by the table's first and last row;
- hosts: a ring sends 2 (P - 1) / P n from each, at so many megabits a second, after `alone`.

torch, MLPs of one hidden square, every rank computes 32 rows, SGD, medians of steps. Hosts are
network namespaces with a rank each, on gloo (needs root, `ip` and `tc`).
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import time
from typing import Any

from _links import from_hosts
from _measure import arguments, from_ranks, table, write_json

SCRIPT = Path(__file__).with_name("_scaling_rank.py")
SMALL = 1_000_000
MODELS = (10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 200_000_000)
MESSAGES = tuple(1 << power for power in range(10, 31, 4))
HOSTS = (1, 2, 3, 4)

Figures = dict[str, Any]


def main() -> int:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--only", choices=TABLES)
    parser.add_argument("--steps", type=int, default=12, help="steps that count, of each job")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--megabits", type=int, default=1000)
    asked = parser.parse_args()
    figures: Figures = {}
    for name in [asked.only] if asked.only else TABLES:
        head, rows, figures[name] = TABLES[name](asked)
        print(f"\n{name}\n{table(head, rows, markdown=asked.markdown)}", flush=True)
    write_json(asked.json, figures)
    return 0


def ranks(asked: Namespace) -> Table:
    cores = len(os.sched_getaffinity(0))
    found = {
        count: job(count, asked, models=(SMALL,), messages=(4 * SMALL,))
        for count in {*asked.ranks, 1, 2}
    }
    single, pair = found[1]["models"][str(SMALL)], found[2]["messages"][str(4 * SMALL)]
    rows = []
    for count, read in sorted(found.items()):
        foreseen = single["alone"] * max(1, count / cores) + (pair * count / 2) * (count > 1)
        rows.append(
            (
                f"{count}{' (more than cores)' * (count > cores)}",
                f"{read['started']:.2f}",
                f"{read['memory']:.0f}",
                *beside(read["models"][str(SMALL)]["step"], foreseen),
            )
        )
    return ("ranks", "s to start", "MB a rank", "ms a step", "formula", "ratio"), rows, found


def models(asked: Namespace) -> Table:
    read = job(2, asked, models=MODELS, messages=[4 * size for size in MODELS])
    rows = []
    for size in MODELS:
        one = read["models"][str(size)]
        foreseen = one["alone"] + read["messages"][str(4 * size)]
        rows.append((f"{one['parameters']:,}", *beside(one["step"], foreseen)))
    return ("parameters", "ms a step", "formula", "ratio"), rows, read


def messages(asked: Namespace) -> Table:
    rows, figures = [], {}
    for reduction in ("shared_memory", "gloo"):
        read = job(2, asked, messages=MESSAGES, reduction=reduction)["messages"]
        figures[reduction] = read
        first, last = read[str(MESSAGES[0])], read[str(MESSAGES[-1])]
        slope = (last - first) / (MESSAGES[-1] - MESSAGES[0])
        for size in MESSAGES:
            foreseen = first + slope * (size - MESSAGES[0])
            rows.append((reduction, f"{size:,}", *beside(read[str(size)], foreseen)))
    return ("reduction", "bytes", "ms", "a + b n", "ratio"), rows, figures


def hosts(asked: Namespace) -> Table:
    rows, figures = [], {}
    for count in HOSTS:
        figures[count] = read = from_hosts(
            count, asked.megabits, SCRIPT, *words(asked, (SMALL,), (), "auto")
        )["models"][str(SMALL)]
        bytes_sent = 2 * (count - 1) / count * 4 * read["parameters"]
        foreseen = read["alone"] + bytes_sent * 8 / asked.megabits / 1e6
        sent = (f"{read['sent'] / 1e6:.2f}", f"{bytes_sent / 1e6:.2f}")
        rows.append((str(count), *sent, *beside(read["step"], foreseen)))
    return ("hosts", "MB sent", "formula", "ms a step", "formula", "ratio"), rows, figures


Table = tuple[tuple[str, ...], Sequence[tuple[str, ...]], Mapping[Any, Any]]
TABLES: dict[str, Callable[[Namespace], Table]] = {
    "ranks": ranks, "models": models, "messages": messages, "hosts": hosts,
}  # fmt: skip


def beside(read: float, foreseen: float) -> tuple[str, str, str]:
    return f"{1000 * read:.3f}", f"{1000 * foreseen:.3f}", f"{read / foreseen:.2f}"


def job(
    count: int,
    asked: Namespace,
    *,
    models: Sequence[int] = (),
    messages: Sequence[int] = (),
    reduction: str = "auto",
) -> Figures:
    """What rank 0 of so many on this host says."""
    found: Figures = from_ranks(count, SCRIPT, *words(asked, models, messages, reduction))
    return found


def words(
    asked: Namespace, models: Sequence[int], messages: Sequence[int], reduction: str
) -> list[str]:
    listed = (",".join(map(str, sizes)) for sizes in (models, messages))
    return [str(time()), *listed, str(asked.steps), reduction]


if __name__ == "__main__":
    sys.exit(main())
