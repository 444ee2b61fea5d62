"""Say what a framework can do with its own tensors, the little that collectives are composed of;
and which dtypes are added up, and in what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from dream._errors import Unsupported
from dream.collectives.transport import Combine, Length, Native, Op, Tensor

CARRIED = {
    "float16": "float32",
    "bfloat16": "float32",
    "float32": "float32",
    "float64": "float64",
    "complex64": "float32",
    "complex128": "float64",
    "bool": "int32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
    "int32": "int32",
    "uint32": "int64",
    "int64": "int64",
}
"""A tensor's dtype -> the one that a wire adds it up in. Half precision is added up in float32
and rounded once; small integers wrap around as they would in their own dtype."""

SIZES = {name: int("".join(filter(str.isdigit, name)) or "8") // 8 for name in [*CARRIED, "uint64"]}
"""Bytes of an element, of all that can be moved."""


def carried(op: Op, dtype: str) -> str:
    """The dtype in which `op` is done; `Unsupported` where there is no such thing."""
    if dtype not in CARRIED:
        raise Unsupported(
            f"This dtype cannot be reduced across ranks. Received: op={op!r}, {dtype}. Cast it to "
            f"one of: {', '.join(CARRIED)}."
        )
    if _meaningless(op, dtype):
        raise Unsupported(
            f"There is no {op} of this dtype. Received: op={op!r}, {dtype}. Cast it first, to a "
            f"{'float' if op == 'mean' else 'number'}."
        )
    return CARRIED[dtype]


def _meaningless(op: Op, dtype: str) -> bool:
    if dtype.startswith("complex"):
        return op not in ("sum", "mean")
    if dtype == "bool":
        return op in ("sum", "mean", "product")
    return op == "mean" and "float" not in dtype


def check_moves(dtype: str) -> None:
    """`Unsupported` where a dtype cannot go from rank to rank."""
    if dtype not in SIZES:
        raise Unsupported(
            f"This dtype cannot be sent between ranks. Received: {dtype}. Cast it to one of: "
            f"{', '.join(SIZES)}."
        )


class Tensors(ABC):
    """One framework's tensors.

    Dtypes are given by their common names ("float32"). "Flat" is a native tensor of shape (n,),
    contiguous; "words" is a flat int32 one.
    """

    @abstractmethod
    def take(self, x: Tensor) -> Native:
        """`x` as a native tensor, without a copy where there need be none. Takes the framework's
        own kinds and NumPy's; anything else raises `Unsupported`."""

    @abstractmethod
    def give(self, result: Native, like: Tensor, out: Tensor | None) -> Tensor:
        """`result` in the kind of `like`; or written to `out`, which is then what is given."""

    def gathered(
        self,
        x: Tensor,
        rank: int,
        gather: Callable[[Tensor], Tensor],
        add: Callable[[Tensor], Tensor],
    ) -> Tensor | None:
        """`gather(x)` that gradients flow back through, where the framework would have that; else
        None. All ranks' gradients of what was gathered are added up by `add`, and `rank` takes
        those of its rows."""
        return None

    @abstractmethod
    def key(self, x: Native) -> Hashable:
        """The same for tensors alike in dtype and shape. Cheap."""

    @abstractmethod
    def dtype(self, x: Native) -> str: ...

    @abstractmethod
    def shape(self, x: Native) -> tuple[int | None, ...]:
        """None where a graph does not know a size yet."""

    @abstractmethod
    def sizes(self, x: Native) -> list[Length]:
        """The shape, with a tensor of shape () for what a graph does not know."""

    @abstractmethod
    def flat(self, x: Native, dtype: str, *, own: bool = False) -> Native:
        """A fresh copy, flat, in `dtype`. A complex number becomes two floats.

        own: `x` may be overwritten, so where it is flat in memory already, no copy."""

    @abstractmethod
    def size(self, x: Native) -> Length:
        """The length of `flat`."""

    @abstractmethod
    def shaped(self, flat: Native, like: Native) -> Native:
        """The inverse of `flat`: the dtype and shape of `like`."""

    @abstractmethod
    def words(self, x: Native) -> Native:
        """The bytes of `x` as a fresh copy, zeros filling the last word."""

    @abstractmethod
    def unworded(self, words: Native, dtype: str, shape: Sequence[Length]) -> Native:
        """The inverse of `words`."""

    @abstractmethod
    def row(self, x: Native) -> Native:
        """A tensor of shape () as one of shape (1,)."""

    @abstractmethod
    def join(self, parts: Sequence[Native]) -> Native:
        """Native tensors end to end along dim 0."""

    @abstractmethod
    def cut(self, x: Native, lengths: Sequence[Length]) -> list[Native]:
        """The inverse of `join`."""

    @abstractmethod
    def combine(self, flats: Sequence[Native], op: Combine) -> Native:
        """Flats of one length combined element by element, from the first to the last."""

    @abstractmethod
    def over(self, flat: Native, count: int) -> Native:
        """`flat` divided by `count`; may overwrite it."""

    @abstractmethod
    def numbers(self, values: Sequence[Length]) -> Native:
        """Integers as words."""

    @abstractmethod
    def integers(self, words: Native, count: int) -> list[Length]:
        """The inverse of `numbers`."""

    @abstractmethod
    def to_bytes(self, x: Native) -> memoryview:
        """The bytes of `x`, in row-major order."""

    @abstractmethod
    def from_bytes(self, data: bytearray, dtype: str, shape: Sequence[int]) -> Native:
        """A tensor that may share the memory of `data`."""

    @abstractmethod
    def in_graph(self) -> bool:
        """Whether what is called now is only written down, to run later."""

    def refuse_in_graphs(self, what: str) -> None:
        """Raise where what cannot be written down is called in a graph."""
        if self.in_graph():
            raise Unsupported(
                f"This works only outside tf.function. Received: {what} inside one. Call it "
                "eagerly, or use a collective: all of them run inside."
            )

    @abstractmethod
    def after(self, act: Callable[[list[list[int]]], object], xs: list[Native]) -> list[Native]:
        """In a graph: the tensors, with `act` called with their shapes whenever the graph runs,
        before they are used."""


F = TypeVar("F", bound=Callable[..., Any])


def as_written(function: F) -> F:
    """The function, marked as AutoGraph marks what it has done with: inside a user's tf.function
    it would otherwise rewrite it, at a price and to no end."""
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function
