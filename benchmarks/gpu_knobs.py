"""What the knobs are worth on a GPU: precision, recomputation, the bucket view. PyTorch.

    python benchmarks/gpu_knobs.py [--width 2048] [--layers 12] [--rows 8192] [--rounds 12]

Prints a table for the benchmarks' README, with the device's name. Without a GPU it says so and does
nothing.
"""

from __future__ import annotations

import argparse
import gc
import time
from statistics import median
from typing import Any

import torch
from torch import nn

import dream

WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "TF32": {},
    "bfloat16": {"precision": "bfloat16"},
    "float16 (O1)": {"precision": "float16"},
    "O2": {"precision": "O2"},
    "O3": {"precision": "O3"},
    "bfloat16, recompute": {"precision": "bfloat16", "recompute": True},
    'bfloat16, recompute="sqrt"': {"precision": "bfloat16", "recompute": "sqrt"},
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))


def measured(way: str, given: argparse.Namespace) -> tuple[float, float]:
    """(seconds of a step, GiB that the allocator had at most)."""
    torch.backends.cuda.matmul.allow_tf32 = way == "TF32"
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with dream.strategy("single", framework="torch", **WAYS[way]) as strategy:
        torch.manual_seed(0)
        blocks = (Block(given.width) for _ in range(given.layers))
        model = nn.Sequential(*blocks, nn.Linear(given.width, 1)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        x = torch.randn(given.rows, given.width, device="cuda")
        step = strategy.train_step(model, lambda out, y: (out - y).square().mean(), optimizer)
        times = []
        for _ in range(given.rounds):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            step(x, x[:, :1])
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    return median(times[given.rounds // 4 :]), torch.cuda.max_memory_allocated() / 2**30


def bucket_view(viewed: bool, width: int, layers: int) -> float:
    """GiB that a step under DDP has at most; on one rank, whose buckets are as large as on many."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = nn.Sequential(*(Block(width) for _ in range(layers))).cuda()
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=viewed)
    x = torch.randn(64, width, device="cuda")
    for _ in range(3):
        model.zero_grad()
        ddp(x).square().mean().backward()
    return torch.cuda.max_memory_allocated() / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("No GPU is here: nothing was measured.")
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| way | ms a step | against float32 | GiB at most |\n| --- | --- | --- | --- |")
    base = 0.0
    for way in WAYS:
        seconds, peak = measured(way, given)
        base = base or seconds
        print(f"| {way} | {1000 * seconds:.2f} | {base / seconds:.2f} x | {peak:.2f} |")
    torch.distributed.init_process_group(
        "nccl", init_method="tcp://127.0.0.1:29571", rank=0, world_size=1
    )
    copied, viewed = (bucket_view(v, given.width, given.layers) for v in (False, True))
    print(f"\nGradients as views of DDP's buckets: {viewed:.2f} GiB at most, else {copied:.2f}.")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
