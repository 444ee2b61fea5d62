"""What a step costs on one GPU under each name, beside plain torch. PyTorch.

    python benchmarks/gpu_steps.py [--rounds 5] [--steps 20] [--model GPT] [--compiled]

ResNet-50 (channels last, 128 images) and GPT-2 small (8 texts of 1,024 tokens), computed in
bfloat16 by autocast: an untouched loop in the block of each strategy, and `train_step`. All in one
process, in an order drawn afresh each round; a block has a model of its own, and its first steps do
not count. MFU is against the maker's peak for bfloat16. Then one step is read for waits of the host
for the GPU (torch.cuda.set_sync_debug_mode). Without a GPU it says so and does nothing; --device
cpu tries the code on small batches.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from _gpu_models import Work, works
from _measure import Times, arguments, interleave, ratio, spread, table, write_json

import dream

NAMES = ("single", "mirrored", "sharded", "data_parallel")
PEAKS = {"A100": 312e12, "H100": 989e12, "H200": 989e12}  # bfloat16, dense, by the datasheets
WARM = 5
Step = Callable[[], Any]


def main() -> int:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed in a block")
    parser.add_argument("--model", default="", help="only models with this in their name")
    parser.add_argument("--names", nargs="+", default=NAMES, help="strategies")
    parser.add_argument("--compiled", action="store_true", help="models go through torch.compile")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        print("No GPU is here: nothing was measured.")
        return 0
    on_gpu = asked.device == "cuda"
    torch.backends.cudnn.benchmark = True
    name = torch.cuda.get_device_name() if on_gpu else "the CPU, to try the code"
    print(f"{name}, torch {torch.__version__}", flush=True)
    figures: dict[str, Times] = {}
    for title, work in works(asked.device, 0 if on_gpu else 1).items():
        if asked.model in title:
            figures[title] = interleave(
                _contenders(work, asked), rounds=asked.rounds, warmup=int(asked.compiled)
            )
            print(f"\n{title}{', compiled' * asked.compiled}")
            print(_told(figures[title], work, name, asked.markdown), flush=True)
            if on_gpu:
                print(_waits(work, asked), flush=True)
    write_json(asked.json, {"seconds_per_step": figures, "device": name})
    return 0


def _contenders(work: Work, asked: Namespace) -> dict[str, Callable[[], float]]:
    made: dict[str, Callable[[], float]] = {
        "plain torch": partial(_timed, work, asked, None, False)
    }
    for name in asked.names:
        made[f"{name}: the loop"] = partial(_timed, work, asked, name, False)
        made[f"{name}: train_step"] = partial(_timed, work, asked, name, True)
    return made


def _timed(work: Work, asked: Namespace, name: str | None, by_step: bool) -> float:
    """Seconds of a step, in a block of its own."""

    def timed(step: Step) -> float:
        for _ in range(WARM if asked.device == "cuda" else 1):
            step()
        _wait(asked)
        begin = time.perf_counter()
        for _ in range(asked.steps):
            step()
        _wait(asked)
        return (time.perf_counter() - begin) / asked.steps

    return _in_block(work, asked, name, by_step, timed)


def _in_block(
    work: Work, asked: Namespace, name: str | None, by_step: bool, run: Callable[[Step], Any]
) -> Any:
    options = {"precision": "bfloat16"} if by_step else {}
    block: Any = dream.strategy(name, framework="torch", **options) if name else nullcontext()
    with block as strategy:
        torch.manual_seed(0)
        model = work.model()
        if asked.compiled:
            model.compile()
        optimizer = work.optimizer(model.parameters())
        x, y = work.batch()
        if by_step:
            return run(partial(strategy.train_step(model, work.loss, optimizer), x, y))

        def loop() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(asked.device, torch.bfloat16):
                loss = work.loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return run(loop)


def _wait(asked: Namespace) -> None:
    if asked.device == "cuda":
        torch.cuda.synchronize()


def _told(times: Times, work: Work, device: str, markdown: bool) -> str:
    plain = next(iter(times))
    peak = next((flops for card, flops in PEAKS.items() if card in device), None)
    rows = []
    for name, taken in times.items():
        seconds = spread(taken)
        share = f"{work.operations / seconds.median / peak:.1%}" if peak else "?"
        rows.append((name, str(seconds.scaled(1000)), str(ratio(times, name, plain)), share))
    return table(("", "ms a step", f"against {plain}", "MFU"), rows, markdown=markdown)


def _waits(work: Work, asked: Namespace) -> str:
    """What made the host wait for the GPU within three steps, past the first ones."""

    def counted(step: Step) -> list[str]:
        for _ in range(WARM):
            step()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(3):
                    step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return [
            f"{w.filename.rpartition('site-packages/')[2]}:{w.lineno}"
            for w in caught
            if "synchroniz" in str(w.message)
        ]

    rows = []
    for name in (None, *asked.names):
        for by_step in (False, True) if name else (False,):
            places = _in_block(work, asked, name, by_step, counted)
            how = "train_step" if by_step else "the loop"
            said = ", ".join(sorted(set(places)))
            rows.append((name or "plain torch", how, str(len(places)), said))
    return table(("", "", "waits in 3 steps", "where"), rows, markdown=asked.markdown)


if __name__ == "__main__":
    raise SystemExit(main())
