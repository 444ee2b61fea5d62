"""What Keras draws in a step is drawn for the global batch, and a part uses its rows of it: so
masks and noise are those of one device, and every part's generators stay in step.

Keras's layers draw through a few functions of its backend; each is called here with the shape that
it would have on one device. A tensor whose first dim is k times the part's samples has k rows for
each of them: one sample's after another's; or, where k batches were put one behind the other in the
step, one batch's after another's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any

from keras import ops

from dream._log import warn_once
from dream._patches import value_set
from dream.adapters.keras.randomness import sizes

_rows: ContextVar[ShareRows | None] = ContextVar("dream_rows", default=None)


class ShareRows(ABC):
    """Which rows of the global batch a part's share is."""

    @abstractmethod
    def dims(self, shape: Any) -> Sequence[Any]:
        """Return a shape, as Keras's functions take it, as numbers and scalar tensors."""

    @abstractmethod
    def counts(self, dims: Sequence[Any]) -> bool:
        """Whether a tensor of this shape, which is not empty, may hold rows of the part's
        samples."""

    @abstractmethod
    def whole(self, length: Any) -> Any:
        """Return how many rows the tensor has on one device that has so many here."""

    @abstractmethod
    def take(self, tensor: Any, length: Any) -> Any:
        """Return the part's rows, so many, of a tensor for the global batch."""

    def stacked(self, pieces: Sequence[Any], axis: Any) -> None:
        """Note that tensors were put one behind the other, in a step that runs eagerly."""
        del pieces, axis

    def aside(self) -> AbstractContextManager[Any]:
        """Inside, what Keras's functions draw by is as the framework has it."""
        return nullcontext()

    @abstractmethod
    def spread(self, tensor: Any, length: Any) -> Any:
        """Return the inverse: the part's rows where they lie in the global batch, 1 elsewhere."""

    @abstractmethod
    def dropout(
        self, own: Callable[..., Any], inputs: Any, rate: Any, dims: Sequence[Any] | None, seed: Any
    ) -> Any:
        """Drop the part's inputs out. own: Keras's function. dims: of the mask, the first of which
        counts rows; None for those of the inputs."""


def bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which draws as here wherever it is called: again, in backward."""
    rows = _rows.get()

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with drawn_by(rows):
            return function(*args, **kwargs)

    return call if rows is not None else function


def drawn_by(rows: ShareRows | None) -> AbstractContextManager[None]:
    """Inside, the replaced functions draw for the global batch; None: as they are."""
    return value_set(_rows, rows)


def global_forms(owner: Any) -> dict[str, Callable[..., Any]]:
    """Return what replaces the functions of a module that draws, by name."""
    forms = {name: _of_shape(getattr(owner, name)) for name in _BY_SHAPE}
    forms["dropout"] = _dropout(owner.dropout)
    forms["categorical"] = _categorical(owner.categorical)
    forms["shuffle"] = _shuffle(owner.shuffle)
    return forms


_BY_SHAPE = (
    "beta", "binomial", "gamma", "normal", "randint", "truncated_normal", "uniform",
)  # fmt: skip
_BY_SAMPLE = {"beta": ("alpha", "beta"), "binomial": ("counts", "probabilities"),
              "gamma": ("alpha",)}  # fmt: skip
"""Arguments that may differ from sample to sample."""


def noting_stacks(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return `concatenate` that notes what it puts one behind the other."""

    @wraps(own)
    def concatenate(xs: Any, axis: int = 0) -> Any:
        rows = _rows.get()
        if rows is not None:
            rows.stacked(xs, axis)
        return own(xs, axis=axis)

    return concatenate


def _of_shape(own: Callable[..., Any]) -> Callable[..., Any]:
    by_sample = _BY_SAMPLE.get(own.__name__, ())
    takes = signature(own)

    @wraps(own)
    def draw(*args: Any, **kwargs: Any) -> Any:
        rows = _rows.get()
        if rows is None:
            return own(*args, **kwargs)
        given = takes.bind(*args, **kwargs)
        dims = list(rows.dims(given.arguments["shape"]))
        if not dims or not rows.counts(dims):
            return alike(own, args, kwargs)
        length, given.arguments["shape"] = dims[0], (rows.whole(dims[0]), *dims[1:])
        for name in by_sample:
            value = given.arguments[name]
            if len(getattr(value, "shape", ())) == len(dims) and value.shape[0] != 1:
                given.arguments[name] = rows.spread(value, length)
        return rows.take(alike(own, given.args, given.kwargs), length)

    return draw


def _dropout(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def draw(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        rows = _rows.get()
        if rows is None or rate in (0.0, 1.0):
            return own(inputs, rate, noise_shape, seed)
        sizes = list(rows.dims(inputs))
        asked = sizes if noise_shape is None else list(rows.dims(noise_shape))
        dims = [size if want is None else want for want, size in zip(asked, sizes, strict=True)]
        if not dims or not rows.counts(dims):
            return alike(own, (inputs, rate, noise_shape, seed), {})
        with drawn_by(None), rows.aside():
            return rows.dropout(own, inputs, rate, None if noise_shape is None else dims, seed)

    return draw


def _categorical(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def draw(logits: Any, *args: Any, **kwargs: Any) -> Any:
        rows = _rows.get()
        dims = [] if rows is None else list(rows.dims(logits))
        if rows is None or not rows.counts(dims):
            return alike(own, (logits, *args), kwargs)
        whole = rows.spread(logits, dims[0])
        return rows.take(alike(own, (whole, *args), kwargs), dims[0])

    return draw


def _shuffle(own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def draw(x: Any, axis: int = 0, seed: Any = None) -> Any:
        rows = _rows.get()
        if rows is not None and axis == 0 and rows.counts(rows.dims(ops.shape(x))):
            warn_once(
                "A shuffle inside a training step couples samples, which lie on several replicas. "
                "Received: keras.random.shuffle (MixUp and CutMix call it). Each replica shuffles "
                "its own share, which is not what one device does; shuffle in the data instead."
            )
        return alike(own, (x, axis, seed), {})

    return draw


def alike(own: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
    """Call a function of Keras's as it is: it may call others that are replaced."""
    rows = _rows.get()
    with drawn_by(None), nullcontext() if rows is None else rows.aside():
        return own(*args, **kwargs)


def counted() -> None:
    """Count a draw that is about to be made, whatever its shape."""
    draws = sizes.current()
    if draws is not None:
        draws.go_on()


def is_written(dims: Sequence[Any], count: int) -> bool:
    """Whether the script has written down how many rows there are, whatever the batch's are.
    count: of the part's samples."""
    draws = sizes.current()
    if draws is None:
        return False
    told = draws.written(dims)
    if told is not None:
        return told
    if not draws.sizes.written(dims):
        return False
    if draws.sizes.may_be_rows(dims, count):
        warn_once(
            "A step draws rows for its batch's samples, and others whose number the script has "
            f"written down, and which are which cannot be told. Received: {tuple(dims)}, for a "
            f"share of {count} samples; it counts as written down. Draw by the batch's length, or "
            "take another batch_size"
        )
    return True
