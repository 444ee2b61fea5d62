"""What a framework can do with its own tensors: the little that collectives are composed of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence

from dream._errors import Unsupported
from dream.collectives.wire import Combine, Length, Native, Tensor


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
                f"This runs outside tf.function only. Received: {what} inside one. Call it "
                "eagerly, or use a collective: all of them run inside."
            )

    @abstractmethod
    def after(self, act: Callable[[list[list[int]]], object], xs: list[Native]) -> list[Native]:
        """In a graph: the tensors, with `act` called with their shapes whenever the graph runs,
        before they are used."""
