"""A sketch made by hand: four layers in a row, of which the middle two can be divided."""

from __future__ import annotations

from dream.plan.hardware import Hardware, Link
from dream.plan.sketch import WHOLE, Cut, Layer, Op, Parameter, Sketch

NAMES = ("a", "b", "c", "d")


def parameter(name: str, rows: int, columns: int, cut: int = WHOLE) -> Parameter:
    return Parameter(f"{name}.weight", name, rows * columns, rows, 4, trained=True, cut=cut)


SKETCH = Sketch(
    batch=8,
    parameters=(
        parameter("a", 10, 10),
        parameter("b", 40, 10, cut=0),
        parameter("c", 10, 40, cut=0),
        parameter("d", 10, 10),
    ),
    layers=tuple(Layer(name, "Linear", name, 1000) for name in NAMES),
    units=dict.fromkeys(NAMES, 320),
    cuts=(Cut(size=40, saved=1600, forward=320, backward=320),),
    ops=(
        *(Op("forward", "matmul", 1600, 0, name, 0 if name in "bc" else WHOLE) for name in NAMES),
        Op("backward", "matmul", 12800, 0, ""),
        Op("update", "other", 0, 8000, ""),
    ),
    buffers=64,
    running=32,
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

FLAT = Hardware(
    name="flat",
    memory=20_000,
    flops={"float32": {"matmul": 1000.0, "convolution": 1000.0, "other": 1000.0}},
    bandwidth=1000.0,
    launch=0.0,
    per_host=8,
    near=Link(1.0, 100.0),
    far=Link(10.0, 10.0),
    call=0.0,
    overlaps=False,
    fused=False,
    sources=("made up",),
)
