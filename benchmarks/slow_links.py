"""Two hosts behind a slow link: what an epoch costs, and what was learnt, where gradients travel
at every step, where replicas are averaged now and then, and where they come together in outer
steps. The hosts are network namespaces; each may send so many megabits a second, by `tc`.

    python benchmarks/slow_links.py [--megabits 100 10] [--epochs 6] [--rounds 1] [--markdown]

Needs root, `ip` and `tc`. Prints seconds of training, megabytes that a host sent, and the mean loss
and the accuracy over all of the digits at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median

from _links import from_hosts
from _measure import arguments, table, write_json

SCRIPT = str(Path(__file__).with_name("_slow_link_rank.py"))
OUTER = {"every": 14, "outer_lr": 0.7}
CONTENDERS: dict[str, tuple[str, dict[str, object]]] = {
    "mirrored": ("mirrored", {}),
    "mirrored, powersgd:2": ("mirrored", {"compression": "powersgd:2"}),
    "local_sgd, every=14": ("local_sgd", {"every": 14}),
    "local_sgd, every=14, outer_lr=0.7": ("local_sgd", OUTER),
    "the same, fragments=4": ("local_sgd", {**OUTER, "fragments": 4}),
}


def main() -> int:
    parser = arguments(__doc__, rounds=1)
    parser.add_argument("--megabits", type=int, nargs="+", default=[100, 10])
    parser.add_argument("--epochs", type=int, default=6)
    asked = parser.parse_args()
    figures = {
        f"{megabits} Mbit/s": {
            name: [train(*what, megabits, asked.epochs) for _ in range(asked.rounds)]
            for name, what in CONTENDERS.items()
        }
        for megabits in asked.megabits
    }
    for link, contenders in figures.items():
        rows = [
            (name, *(f"{median(one[column] for one in read):.{places}f}"
                     for column, places in (("seconds", 1), ("MB", 1), ("loss", 3), ("right", 3))))
            for name, read in contenders.items()
        ]  # fmt: skip
        print(table((link, "s", "MB a host sent", "loss", "right"), rows, markdown=asked.markdown))
        print()
    write_json(asked.json, figures)
    return 0


def train(name: str, options: dict[str, object], megabits: int, epochs: int) -> dict[str, float]:
    """Return what rank 0 says of one training on two hosts."""
    words = (name, json.dumps(options), str(epochs))
    found: dict[str, float] = from_hosts(2, megabits, SCRIPT, *words)
    return found


if __name__ == "__main__":
    sys.exit(main())
