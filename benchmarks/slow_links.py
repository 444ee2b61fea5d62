"""Two hosts behind a slow link: what an epoch costs, and what was learnt, where gradients travel
at every step, where replicas are averaged now and then, and where they come together in outer
steps. The hosts are network namespaces; each may send so many megabits a second, by `tc`.

    python benchmarks/slow_links.py [--megabits 100 10] [--epochs 6] [--rounds 1] [--markdown]

Needs root, `ip` and `tc`. Prints seconds of training, megabytes that a host sent, and the mean loss
and the accuracy over all of the digits at the end.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from _measure import arguments, dream_command, table, write_json

SCRIPT = str(Path(__file__).with_name("_slow_link_rank.py"))
OUTER = {"every": 14, "outer_lr": 0.7}
CONTENDERS: dict[str, tuple[str, dict[str, object]]] = {
    "mirrored": ("mirrored", {}),
    "mirrored, powersgd:2": ("mirrored", {"compression": "powersgd:2"}),
    "local_sgd, every=14": ("local_sgd", {"every": 14}),
    "local_sgd, every=14, outer_lr=0.7": ("local_sgd", OUTER),
    "the same, fragments=4": ("local_sgd", {**OUTER, "fragments": 4}),
}
LIMIT = 900.0
"""Seconds that a training may take."""


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
    with tempfile.TemporaryDirectory() as folder, ExitStack() as hosts, linked(megabits) as names:
        out, token = Path(folder, "figures"), secrets.token_hex(8)
        launchers = [
            hosts.enter_context(
                subprocess.Popen(
                    ["ip", "netns", "exec", host, dream_command(), "run", "-n", "1", "--nnodes",
                     "2", "--node-rank", str(node), "--master-addr", address(0), SCRIPT, str(out),
                     name, json.dumps(options), str(epochs), link(node)],
                    env=os.environ | {"OMP_NUM_THREADS": "1", "DREAM_TOKEN": token},
                )
            )
            for node, host in enumerate(names)
        ]  # fmt: skip
        try:
            codes = [launcher.wait(LIMIT) for launcher in launchers]
        finally:
            for launcher in launchers:
                launcher.kill()
        if any(codes):
            raise SystemExit(f"{name} {options}: the hosts ended with {codes}")
        figures: dict[str, float] = json.loads(out.read_text())
        return figures


def address(node: int) -> str:
    return f"10.213.7.{node + 1}"


def link(node: int) -> str:
    return f"slow{os.getpid()}{'ab'[node]}"[-15:]


@contextmanager
def linked(megabits: int) -> Iterator[list[str]]:
    """Two hosts with a link that carries so much each way, as long as the block lasts."""
    names = [f"dream-slow-{os.getpid()}-{node}" for node in range(2)]
    try:
        for name in names:
            run("ip", "netns", "add", name)
        run("ip", "link", "add", link(0), "type", "veth", "peer", "name", link(1))
        for node, name in enumerate(names):
            within = ("ip", "-n", name)
            run("ip", "link", "set", link(node), "netns", name)
            run(*within, "addr", "add", f"{address(node)}/24", "dev", link(node))
            run(*within, "link", "set", link(node), "up")
            run(*within, "link", "set", "lo", "up")
            run("tc", "-n", name, "qdisc", "add", "dev", link(node), "root", "tbf",
                "rate", f"{megabits}mbit", "burst", "64kb", "latency", "200ms")  # fmt: skip
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
