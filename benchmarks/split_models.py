"""What splitting a model costs: dream beside torch's own parts put together by hand.

    python benchmarks/split_models.py [--rounds 15] [--steps 8] [--family tensor]

Two ranks of one thread each, all contenders of a table in the same two processes, in shuffled
order. Beside the times stands the most memory that a rank took, of a job of its own for each
contender: from after the imports to after four steps, libraries that it loads on the way included.
"""

from __future__ import annotations

import sys
from pathlib import Path

from _measure import Times, arguments, from_ranks, ratio, spread, table, write_json

HERE = Path(__file__).parent
FAMILIES = ("fsdp", "tensor", "pipeline", "gpipe")
MODELS = {"mlp": "residual MLP, 2M parameters", "attention": "transformer, 3M parameters"}


def main() -> int:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--steps", type=int, default=8, help="steps in a block")
    parser.add_argument("--family", choices=FAMILIES, help="only this one; default all")
    asked = parser.parse_args()
    figures: dict[str, object] = {}
    for family in [asked.family] if asked.family else FAMILIES:
        for model, what in MODELS.items():
            words = (family, model, str(asked.rounds), str(asked.steps))
            times: Times = from_ranks(2, HERE / "_split_steps.py", *words)
            memory = {name: _peak(words, name) for name in times if not name.endswith("again")}
            figures[f"{family}: {what}"] = {"seconds_per_step": times, "peak_mb": memory}
            print(f"\n{family}: {what}\n{_table(times, memory, markdown=asked.markdown)}")
    write_json(asked.json, figures)
    return 0


def _peak(words: tuple[str, ...], name: str) -> float:
    found: float = from_ranks(2, HERE / "_split_steps.py", *words, name)
    return found


def _table(times: Times, memory: dict[str, float], *, markdown: bool) -> str:
    baseline = next(iter(times))
    rows = [
        (
            name,
            str(spread(taken).scaled(1000)),
            str(ratio(times, name, baseline)),
            f"{memory[name]:.0f}" if name in memory else "",
        )
        for name, taken in times.items()
    ]
    head = ("", "ms a step", f"against {baseline}", "peak MB a rank")
    return table(head, rows, markdown=markdown)


if __name__ == "__main__":
    sys.exit(main())
