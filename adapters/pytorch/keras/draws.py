"""Rows of what is drawn for the global batch, in a step on torch, and torch's generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

import keras
import torch

from dream._log import warn_once
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.randomness.draws import ShareRows, counted, is_written
from dream.adapters.keras.randomness.start import Generators
from dream.adapters.pytorch.randomness.calls import patches
from dream.adapters.pytorch.randomness.current import RowMemory, current, go_on_from, packed
from dream.adapters.pytorch.randomness.generators import GIVEN
from dream.adapters.pytorch.randomness.rows import Rows
from dream.data.partition import Division


@final
class TorchGenerators(Generators):
    """torch's generator draws orders."""

    name = "torch"

    def state(self) -> bytes:
        return packed()

    def restore(self, state: bytes) -> bool:
        go_on_from(state)
        return True

    def seeded(self) -> int | None:
        given = torch.initial_seed()
        return given if given < GIVEN else None  # else drawn by torch itself

    def now(self) -> bytes:
        return self.state()

    def go_on_from(self, state: bytes) -> None:
        go_on_from(state)

    def aside(self) -> AbstractContextManager[Any]:
        return current.together()


@contextmanager
def torch_draws(rows: Rows, memory: RowMemory) -> Iterator[None]:
    """Inside, torch's own operations draw for the global batch too. memory: where the tensors that
    they draw for have its rows."""
    with patches.standing(), current.again(rows, memory):
        yield


@contextmanager
def noting_draws(model: Any) -> Iterator[list[bool]]:
    """Have the list hold something once torch's own functions have drawn in a step of predict."""
    drew: list[bool] = []

    def predict_step(batch: Any) -> Any:
        before = packed()
        outputs = type(model).predict_step(model, batch)
        if before != packed():
            drew.append(True)
        return outputs

    model.__dict__["predict_step"] = predict_step
    try:
        yield drew
    finally:
        del model.__dict__["predict_step"]


@final
class TorchRows(ShareRows):
    """A part's rows of the batch."""

    def __init__(self, share: BatchShare, part: int, parts: int) -> None:
        """part: which of so many it is, where samples are dealt to them in turn."""
        self._count, self._total = max(int(share.count), 1), int(share.total)
        cut = Division(parts).share(self._total, part).cut
        if share.first is not None:
            cut = slice(int(share.first), int(share.first) + self._count)
        # without a sample, the one that stands in weighs nothing
        self._own = cut if share.count else slice(0, 1)
        self._stacked: dict[int, tuple[int, ...]] = {}

    def aside(self) -> AbstractContextManager[Any]:
        return current.together()

    @property
    def rows(self) -> Rows:
        """The same, as torch's own operations are told of it."""
        return Rows(self._own, self._count, self._total)

    def dims(self, shape: Any) -> Sequence[Any]:
        if isinstance(shape, torch.Tensor):
            numbers = shape.dim() == 1 and not shape.is_floating_point()
            return shape.tolist() if numbers else list(shape.shape)
        return [None if size is None else int(size) for size in getattr(shape, "shape", shape)]

    def counts(self, dims: Sequence[Any]) -> bool:
        counted()
        rows = keras_computes() and dims[0] > 0 and dims[0] % self._count == 0
        return rows and not is_written(dims, self._count)

    def whole(self, length: Any) -> int:
        return int(length) // self._count * self._total

    def take(self, tensor: Any, length: Any) -> Any:
        each = length // self._count
        pieces = self._stacked.get(each, (each,))
        parts = tensor.split([many * self._total for many in pieces])
        rows = [
            part.unflatten(0, (self._total, many))[self._own].flatten(0, 1)
            for part, many in zip(parts, pieces, strict=True)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def stacked(self, pieces: Sequence[Any], axis: Any) -> None:
        lengths = [len(piece) for piece in pieces]
        if axis == 0 and all(n and n % self._count == 0 for n in lengths):
            each = [n // self._count for n in lengths]
            found = [m for many in each for m in self._stacked.get(many, (many,))]
            self._stacked[sum(each)] = tuple(found)

    def spread(self, tensor: Any, length: Any) -> Any:
        tensor = keras.ops.convert_to_tensor(tensor)
        warn_once(
            "Draws whose parameters differ from sample to sample may take more numbers for one "
            "than for another on torch. Received: keras.random.gamma, beta, binomial or "
            "categorical with parameters of the batch. They may differ from one device's."
        )
        whole = tensor.new_ones((self.whole(length), *tensor.shape[1:]))
        self.take(whole, length).copy_(tensor) if length == self._count else None
        return whole

    def dropout(self, own: Callable[..., Any], inputs: Any, rate: Any, dims: Any, seed: Any) -> Any:
        inputs = keras.ops.convert_to_tensor(inputs)
        if dims is None:
            length = inputs.shape[0]
            whole = _ones_like(inputs, self.whole(length))
            return inputs * self.take(own(whole, rate, None, seed), length)
        asked = (self.whole(dims[0]), *dims[1:])
        mask = self.take(own(inputs.new_ones(asked), rate, asked, seed), dims[0])
        return inputs * mask


def keras_computes() -> bool:
    """Whether Keras computes, and does not only find out shapes."""
    return bool(keras.src.backend.torch.core.get_device() != "meta")


def _ones_like(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return ones for so many rows, which lie in memory in the order of the tensor's dims: numbers
    are drawn along memory."""
    strides = list(tensor.stride())
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], dim))
    sizes = [rows, *tensor.shape[1:]]
    ones = tensor.new_ones([sizes[dim] for dim in order])
    return ones.permute([order.index(dim) for dim in range(tensor.dim())])
