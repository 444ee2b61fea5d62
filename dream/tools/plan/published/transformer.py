"""A GPT's step, layer by layer, on devices that divide it by tensors, pipeline and data, or that
hold a shard each of everything.

Its operations and bytes go through the formulas that a plan of a user's own model goes through:
`Hardware.seconds`, `traffic.seconds` and `forecast.shown`. Activations are recomputed in backward,
and kernels fused as Megatron-LM has them (Narayanan et al., SC 2021, arXiv:2104.04473, sections 4
and 5.8). All of it in float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from dream.tools.plan import traffic
from dream.tools.plan.forecast import shown
from dream.tools.plan.hardware import Hardware
from dream.tools.plan.sketch import SketchedOp
from dream.tools.plan.traffic import Message

_ITEM, _STATE = 2, 28
"""Bytes: of a number; and what Adam reads and writes for a parameter, in float32."""
_DTYPE = "float16"
_FORWARDS, _BACKWARDS = 2, 2
"""How often a layer's forward operations are run, recomputing counted, and how many times their
work backward takes."""
_LARGEST_MICROBATCH = 16


@final
@dataclass(frozen=True, slots=True)
class Gpt:
    """layers, heads, width of the hidden layer; sequence and vocabulary in tokens."""

    layers: int
    heads: int
    width: int
    sequence: int = 2048
    vocabulary: int = 51_200

    @property
    def parameters(self) -> float:
        """Equation 2 of arXiv:2104.04473."""
        around = (self.vocabulary + self.sequence) / (12 * self.layers * self.width)
        return self.of_a_layer * self.layers * (1 + 13 / (12 * self.width) + around)

    @property
    def of_a_layer(self) -> int:
        """Parameters: four matrices of attention, and two of four times the width."""
        return 12 * self.width**2

    def flops(self, batch: int) -> float:
        """Operations of a step that recomputes: equation 3 of arXiv:2104.04473."""
        attention, logits = (
            self.sequence / (6 * self.width),
            self.vocabulary / (16 * self.layers * self.width),
        )
        tokens = batch * self.sequence
        return 96 * tokens * self.layers * self.width**2 * (1 + attention + logits)

    def layer(self, samples: int, parts: int) -> Iterator[SketchedOp]:
        """Yield a layer's forward operations on one of `parts` devices that divide its tensors."""
        h, tokens = self.width, samples * self.sequence
        for columns in (3 * h, h, 4 * h, 4 * h):  # queries, keys and values; output; the two after
            yield _matmul(tokens, h, columns // parts)
        for _ in range(2):  # scores, and what they weigh
            yield _matmul(tokens, self.sequence, h // parts)
        whole, divided = tokens * h, tokens * h // parts
        scores = samples * self.heads * self.sequence**2 // parts
        for moved in (
            2 * whole, 2 * whole,  # two LayerNorms: read and written
            3.5 * whole, 3.5 * whole,  # bias, dropout with its mask, and the residual
            8 * divided, 6 * divided, 2 * divided,  # GeLU, and heads to the front and back
            4.5 * scores,  # mask, softmax and dropout
        ):  # fmt: skip
            yield SketchedOp("forward", "other", 0, round(moved * _ITEM))

    def seconds(self, layers: float, samples: int, parts: int, hardware: Hardware) -> float:
        """Forward of so many layers, without sending."""
        one = sum(hardware.seconds(op, _DTYPE) for op in self.layer(samples, parts))
        return layers * one

    def logits(self, samples: int, parts: int, hardware: Hardware) -> float:
        """Forward of the last stage's product with the embedding."""
        product = _matmul(samples * self.sequence, self.width, self.vocabulary // parts)
        return hardware.seconds(product, _DTYPE)


def _matmul(rows: int, inner: int, columns: int) -> SketchedOp:
    moved = _ITEM * (rows * inner + inner * columns + rows * columns)
    return SketchedOp("forward", "matmul", 2 * rows * inner * columns, moved)


@final
@dataclass(frozen=True, slots=True)
class TransformerLayout:
    """tensor x pipeline devices hold a copy. interleaved: whether a device holds several stages
    that are not neighbours, as many as are quickest. samples: of a microbatch; None for as many as
    are quickest."""

    devices: int
    batch: int
    tensor: int = 1
    pipeline: int = 1
    samples: int | None = None
    interleaved: bool = True

    def seconds(self, gpt: Gpt, hardware: Hardware) -> float:
        """Return a step's seconds, with the microbatches and stages that are quickest."""
        share = self.batch // (self.devices // (self.tensor * self.pipeline))
        found = [self.samples] if self.samples else _divisors(share, _LARGEST_MICROBATCH)
        return min(
            self._step(gpt, samples, share // samples, chunks, hardware)
            for samples in found
            for chunks in self._chunks(gpt, share // samples)
        )

    def _chunks(self, gpt: Gpt, microbatches: int) -> list[int]:
        if self.pipeline == 1 or not self.interleaved or microbatches % self.pipeline:
            return [1]
        return _divisors(gpt.layers // self.pipeline, gpt.layers)

    def _step(
        self, gpt: Gpt, samples: int, microbatches: int, chunks: int, hardware: Hardware
    ) -> float:
        """The bubble is (p - 1) / chunks of a microbatch's time (arXiv:2104.04473, section
        2.2.2)."""
        layers = gpt.layers / self.pipeline
        forward = gpt.seconds(layers, samples, self.tensor, hardware)
        logits = gpt.logits(samples, self.tensor, hardware) * (1 + _BACKWARDS)
        one = forward * (_FORWARDS + _BACKWARDS) + logits
        one += 3 * layers * self._summed(gpt, samples, hardware)
        passing = 2 * chunks * self._passed(gpt, samples, hardware)
        pipelined = (microbatches + (self.pipeline - 1) / chunks) * (one + passing)
        return pipelined + self._update(gpt, hardware)

    def _summed(self, gpt: Gpt, samples: int, hardware: Hardware) -> float:
        """Seconds of a layer's two sums over the devices that divide its tensors."""
        size = _ITEM * samples * gpt.sequence * gpt.width
        return 2 * traffic.seconds("all_reduce", size, self.tensor, 1, hardware)

    def _passed(self, gpt: Gpt, samples: int, hardware: Hardware) -> float:
        """Seconds of a microbatch from stage to stage: each device sends its part."""
        size = _ITEM * samples * gpt.sequence * gpt.width / self.tensor
        return traffic.seconds("send", size, self.pipeline, self.tensor, hardware)

    def _update(self, gpt: Gpt, hardware: Hardware) -> float:
        """Gradients are added up once backward is through, then the optimizer steps."""
        parts = self.tensor * self.pipeline
        held = gpt.parameters / parts
        summed = traffic.seconds("all_reduce", _ITEM * held, self.devices // parts, parts, hardware)
        return summed + _STATE * held / hardware.bandwidth


@final
@dataclass(frozen=True, slots=True)
class Sharded:
    """Parameters, gradients and state in as many shards as there are devices; each layer is
    gathered for forward and for backward, and its gradient reduced, behind other layers."""

    devices: int
    samples: int

    @property
    def batch(self) -> int:
        return self.devices * self.samples

    def seconds(self, gpt: Gpt, hardware: Hardware) -> float:
        forward = gpt.seconds(gpt.layers, self.samples, 1, hardware)
        logits = gpt.logits(self.samples, 1, hardware)
        backward = forward * (_FORWARDS - 1 + _BACKWARDS) + logits * _BACKWARDS
        gathered = self._messages(gpt, "all_gather")
        reduced = self._messages(gpt, "reduce_scatter")
        update = _STATE * gpt.parameters / self.devices / hardware.bandwidth
        return (
            forward + logits + backward + update
            + shown(gathered, "backward", forward, hardware)
            + shown([*gathered, *reduced], "backward", backward, hardware)
        )  # fmt: skip

    def _messages(self, gpt: Gpt, operation: str) -> list[Message]:
        """Of the layers, and of the embedding."""
        sizes = ((gpt.of_a_layer, gpt.layers), (gpt.vocabulary * gpt.width, 1))
        return [
            Message(operation, _ITEM * size, self.devices, count=count, when="backward")
            for size, count in sizes
        ]


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]
