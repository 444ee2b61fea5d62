"""A sketch and a rehearsal made by hand: four layers in a row."""

from __future__ import annotations

from dream.tools.plan.forecast import Source
from dream.tools.plan.hardware import Hardware, NetworkLink
from dream.tools.plan.sketch import Rehearsal, Sending, Sketch, SketchedOp, SketchedParameter


def parameter(name: str, rows: int, columns: int) -> SketchedParameter:
    return SketchedParameter(f"{name}.weight", rows * columns, rows, 4, trained=True)


SKETCH = Sketch(
    batch=8,
    parameters=(
        parameter("a", 10, 10),
        parameter("b", 40, 10),
        parameter("c", 10, 40),
        parameter("d", 10, 10),
    ),
    ops=(
        *(SketchedOp("forward", "matmul", 1600, 0) for _ in range(4)),
        SketchedOp("backward", "matmul", 12800, 0),
        SketchedOp("update", "other", 0, 8000),
    ),
    buffers=64,
    running=32,
    normalised=(),
    told=4,
    state=8000,
    inputs=320,
    saved=4000,
    forward_peak=4320,
    backward_peak=5320,
    joint_peak=7320,
    update_peak=2320,
    left=320,
)
"""Bytes of parameters: 400, 1600, 1600, 400."""

REHEARSAL = Rehearsal(
    rank=0,
    parameters=1664,
    gradients=1600,
    state=3200,
    activations=4000,
    peak=10464,
    ops=(
        SketchedOp("forward", "matmul", 4000, 0),
        SketchedOp("backward", "matmul", 8000, 0),
        SketchedOp("update", "other", 0, 2000),
    ),
    sent=(
        Sending("all_reduce", 320, "model", "forward", 2),
        Sending("all_reduce", 1604, "data", "backward"),
    ),
    working=3000,
)
SOURCE = Source(lambda _: SKETCH, lambda *_: None)

FLAT = Hardware(
    name="flat",
    memory=20_000,
    flops={"float32": {"matmul": 1000.0, "convolution": 1000.0, "other": 1000.0}},
    bandwidth=1000.0,
    launch=0.0,
    per_host=8,
    near=NetworkLink(1.0, 100.0),
    far=NetworkLink(10.0, 10.0),
    call=0.0,
    overlaps=False,
    fused=False,
    sources=("made up",),
)
