"""What operations of a traced graph make and cost."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

Kind = Literal["matmul", "convolution", "other"]

SAME = {
    "Reshape", "Squeeze", "ExpandDims", "Identity", "StopGradient", "IdentityN", "PreventGradient",
}  # fmt: skip
"""These give what they are given, under another shape."""
FREE = {"Const", "Placeholder", "NoOp", "Shape", "ShapeN"}


def size_of(x: Any) -> int:
    """Return the bytes of a symbolic tensor; of dims that are not known, none."""
    if x.shape.rank is None:
        return 0
    return int(prod(d or 0 for d in x.shape.as_list()) * (x.dtype.size or 0))


def cost(op: Any) -> tuple[Kind, int, int]:
    """(kind, floating point operations, bytes read and written)."""
    moved = sum(map(size_of, [*op.inputs, *op.outputs]))
    if op.type in FREE | SAME:
        return "other", 0, 0
    if op.type in ("MatMul", "BatchMatMulV2", "BatchMatMulV3"):
        a, out = op.inputs[0].shape.as_list(), op.outputs[0].shape.as_list()
        turned = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return "matmul", 2 * prod(out) * (a[-2] if turned else a[-1]), moved
    if op.type.startswith(("Conv2D", "Conv3D", "DepthwiseConv2d")):
        return "convolution", _convolved(op), moved
    if op.type == "Einsum":
        return "matmul", _einsum(op), moved
    return "other", 0, moved


def _convolved(op: Any) -> int:
    """Count two for each entry of the kernel and each pixel of the output."""
    kernel = op.outputs[0] if "BackpropFilter" in op.type else op.inputs[1]
    image = op.inputs[-1] if "Backprop" in op.type else op.outputs[0]
    entries, pixels = kernel.shape.as_list(), image.shape.as_list()
    if None in entries or None in pixels:
        return 0
    return int(2 * prod(entries) * prod(pixels[:-1]))


def _einsum(op: Any) -> int:
    """Count two for each combination of the letters."""
    letters, _, _ = op.get_attr("equation").decode().partition("->")
    sizes: dict[str, int] = {}
    for word, x in zip(letters.split(","), op.inputs, strict=True):
        dims = x.shape.as_list()
        named = word.replace("...", "")
        sizes |= dict(zip(named, dims[len(dims) - len(named) :], strict=True))
        if "..." in word:
            sizes["..."] = prod(dims[: len(dims) - len(named)])
    return 2 * prod(sizes.values())
