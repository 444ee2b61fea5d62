"""A training step as TensorFlow traces it: what each operation makes, needs and costs.

On a CPU convolutions take more while they run. Backward lays patches of images out in rows
(tensorflow/core/kernels/conv_grad_filter_ops.cc and conv_grad_input_ops.h): as many images at a
time as fill a working set, even where the batch has fewer. The set is 30 MiB for the filter's
gradient, the CPU's L3 cache for the input's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

from dream.adapters.tensorflow.operations import FREE, SAME, size_of
from dream.launch.joined.threads import cores
from dream.tools.plan.sketch import Phase

_IN_PLACE = {
    "BiasAdd", "Relu", "Gelu", "Tanh", "Sigmoid", "Mul", "AddV2", "Sub", "RealDiv", "ReluGrad",
    "TanhGrad", "SigmoidGrad", "Softmax", "AddN", "Neg", "Exp", "Square", "Rsqrt", "Sqrt", "Erf",
    "SelectV2", "SquaredDifference",
}  # fmt: skip
"""These write over an input that nobody else needs."""


@final
@dataclass(eq=False, slots=True)
class Buffer:
    """A buffer. uses: operations that still need it."""

    size: int
    phase: Phase
    uses: int = 0


@final
class Graph:
    """The operations in order. forward: how many of them are the forward pass; workspace: bytes
    that one takes while it runs."""

    def __init__(
        self,
        operations: Sequence[Any],
        forward: int,
        gradients: Sequence[Any],
        workspace: Callable[[Any], int],
    ) -> None:
        self.operations = operations
        self._workspace = workspace
        self._forward = forward
        self._of: dict[str, Buffer] = {}
        self._gradients = {x.name for x in gradients if x is not None}
        self._buffers()

    def phase(self, index: int) -> Phase:
        return "forward" if index < self._forward else "backward"

    def saved(self) -> list[Buffer]:
        """Return what the forward pass makes and backward needs, each buffer once."""
        found: dict[int, Buffer] = {}
        for op in self.operations[self._forward :]:
            for x in op.inputs:
                held = self._of.get(x.name)
                if held is not None and held.phase == "forward":
                    found[id(held)] = held
        return list(found.values())

    def peaks(self) -> tuple[int, int, int]:
        """(in forward, in backward without gradients save the one being made, with them)."""
        left = {id(held): held.uses for held in self._of.values()}
        kept = {id(self._of[name]) for name in self._gradients if name in self._of}
        here = together = 0
        most: dict[Phase, int] = {"forward": 0, "backward": 0}
        joint = 0
        seen: set[int] = set()
        for index, op in enumerate(self.operations):
            for held in self._outputs(op):
                if id(held) not in seen:
                    seen.add(id(held))
                    phase = self.phase(index)
                    together += held.size
                    most[phase] = max(most[phase], here + held.size)
                    here += 0 if id(held) in kept else held.size
                    joint = max(joint, together if phase == "backward" else 0)
            if taken := self._workspace(op):
                most[self.phase(index)] = max(most[self.phase(index)], here + taken)
                joint = max(joint, together + taken)
            for x in op.inputs:
                used = self._of.get(x.name)
                if used is not None:
                    left[id(used)] -= 1
                    if left[id(used)] == 0 and id(used) not in kept:
                        here -= used.size
                        together -= used.size
        return most["forward"], most["backward"], joint

    def _outputs(self, op: Any) -> list[Buffer]:
        return [self._of[x.name] for x in op.outputs if x.name in self._of]

    def _buffers(self) -> None:
        """Which tensors share a buffer."""
        consumers: dict[str, int] = {}
        for op in self.operations:
            for x in op.inputs:
                consumers[x.name] = consumers.get(x.name, 0) + 1
        for index, op in enumerate(self.operations):
            if op.type in FREE:
                continue
            given = [self._of.get(x.name) for x in op.inputs]
            for x in op.outputs:
                self._of[x.name] = self._buffer(op, x, given, index, consumers)
            for x in op.inputs:
                if x.name in self._of:
                    self._of[x.name].uses += 1

    def _buffer(
        self, op: Any, x: Any, given: list[Buffer | None], index: int, consumers: dict[str, int]
    ) -> Buffer:
        if op.type in SAME and given and given[0] is not None:
            return given[0]
        size = size_of(x)
        if op.type in _IN_PLACE:
            for source, held in zip(op.inputs, given, strict=True):
                alone = consumers.get(source.name) == 1 and source.op.type not in SAME
                if held is not None and alone and size_of(source) == size:
                    return held
        return Buffer(size, self.phase(index))


_FILTER, _INPUT = "Conv2DBackpropFilter", "Conv2DBackpropInput"
_SET = 30 << 20
_L2, _L3 = 191, 194
"""As glibc numbers what sysconf tells of caches; Python has no names for them."""


def workspace(op: Any) -> int:
    """Return bytes; 0 for what takes none."""
    if op.type not in (_FILTER, _INPUT) or not _is_needed(op):
        return 0
    kernel = (op.outputs[0] if op.type == _FILTER else op.inputs[1]).shape.as_list()
    images = op.inputs[2].shape.as_list()
    if None in kernel or None in images:
        return 0
    patch, pixels = prod(kernel[:-1]), prod(images[1:3])
    itemsize = op.inputs[2].dtype.size
    work = pixels * patch + pixels * kernel[-1] + patch * kernel[-1]
    together = max(1, -(-_working_set(op, images[0], work, itemsize) // (work * itemsize)))
    return int(together * pixels * patch * itemsize)


def _is_needed(op: Any) -> bool:
    """Return whether it runs: the gradient of the model's own input is traced, and then left out
    by TensorFlow."""
    return op.type == _FILTER or bool(op.outputs[0].consumers())


def _working_set(op: Any, samples: int, work: int, itemsize: int) -> int:
    """Return bytes: of one image at a time where it is worth all threads by itself."""
    if op.type == _FILTER:
        return _SET
    alone = samples == 1 or work // cores() >= os.sysconf(_L2) // itemsize
    return 0 if alone else os.sysconf(_L3)
