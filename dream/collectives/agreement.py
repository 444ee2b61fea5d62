"""The ranks compare what they are about to do, now or whenever a graph runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, final

from dream._errors import unknown
from dream.collectives.board import Board, Call, Said, Shape
from dream.collectives.composed import Composed
from dream.collectives.members import Members
from dream.collectives.tensors import Tensors, carried
from dream.collectives.transport import OPS, Length, Native, Op


@final
class Agreement:
    """Has the ranks agree on a collective call before it is made.

    check: whether anything is compared.
    """

    def __init__(self, members: Members, tensors: Tensors, do: Composed, *, check: bool) -> None:
        self._members, self._tensors, self._do = members, tensors, do
        self.check = check and members.size > 1
        self._made: Board | None = None

    @property
    def board(self) -> Board:
        """The first use is a meeting of the ranks."""
        if self._made is None:
            self._made = self._members.board
        return self._made

    def agree_on(self, call: Call) -> None:
        """Outside graphs, on what is all known."""
        if self.check:
            self.board.agree(call)

    def call(self, said: Said, values: list[Native]) -> Call | None:
        """The whole call; None in a graph, which may not know the shapes."""
        if self._tensors.in_graph():
            return None
        return said.call([self._shape(value) for value in values])

    def agree(self, said: Said, values: list[Native]) -> list[Native]:
        """The values, to be used from here on."""
        if not self.check:
            return values
        if self._tensors.in_graph():
            return self._tensors.after(lambda shapes: self._on(said, shapes), values)
        self._on(said, [self._shape(value) for value in values])
        return values

    def lengths(self, said: Said, value: Native) -> tuple[Native, list[Length]]:
        """The value, and every rank's number of rows, which may differ."""
        if self.check and not self._tensors.in_graph():
            rows, *rest = self._shape(value)
            told = self.board.tell(said.call([["*", *rest]]), [int(rows)])
            return value, [row for (row,) in told]
        (value,) = self._with_free_rows(said, [value])
        told_by_wire = self._do.told([self._tensors.sizes(value)[0]])
        return value, [row for (row,) in told_by_wire]

    def splits(self, said: Said, parts: list[Native]) -> tuple[list[Native], list[Length]]:
        """The parts, one for each rank, and the rows that each rank sends to this one."""
        own = self._members.rank
        if self.check and not self._tensors.in_graph():
            call = said.call([["*", *self._shape(parts[0])[1:]]])
            told = self.board.tell(call, [int(self._shape(part)[0]) for part in parts])
            return parts, [row[own] for row in told]
        first, *others = parts
        (first,) = self._with_free_rows(said, [first])
        parts = [first, *others]
        table = self._do.told([self._tensors.sizes(part)[0] for part in parts])
        return parts, [row[own] for row in table]

    def header(self, call: Call, numbers: Sequence[int], root: int) -> Sequence[int]:
        """Root's numbers, of which the others may give none; as many on every call."""
        if self.check:
            return self.board.tell(call, numbers)[root]
        rows: list[list[Any]] = self._do.told(list(numbers))
        return [int(number) for number in rows[root]]

    def _with_free_rows(self, said: Said, values: list[Native]) -> list[Native]:
        if not self.check:
            return values
        return self._tensors.after(
            lambda shapes: self._on(said, [["*", *shape[1:]] for shape in shapes]), values
        )

    def _on(self, said: Said, shapes: Sequence[Shape]) -> None:
        self.board.agree(said.call(shapes))

    def _shape(self, value: Native) -> list[int | str]:
        return ["?" if size is None else size for size in self._tensors.shape(value)]


@final
class Adding:
    """Worked out once for each kind of call, since a training step makes the same ones again."""

    def __init__(self, tensors: Tensors, agreement: Agreement) -> None:
        self._tensors, self._agreement = tensors, agreement
        self._known: dict[Hashable, tuple[Said, list[str], Call | None]] = {}

    def agreed(
        self, name: str, values: list[Native], op: Op, root: int | None = None
    ) -> tuple[list[Native], list[str]]:
        """The values, to be used from here on, and a dtype for each."""
        key = (name, op, root, *[self._tensors.key(value) for value in values])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._kind(name, values, op, root)
        said, dtypes, call = found
        if call is None:
            return self._agreement.agree(said, values), dtypes
        self._agreement.agree_on(call)
        return values, dtypes

    def _kind(
        self, name: str, values: list[Native], op: Op, root: int | None
    ) -> tuple[Said, list[str], Call | None]:
        if op not in OPS:
            raise unknown("op", op, OPS)
        dtypes = [self._tensors.dtype(value) for value in values]
        arguments: dict[str, object] = {"op": op} if root is None else {"op": op, "root": root}
        said = Said(name, dtypes, arguments)
        travels = [carried(op, dtype) for dtype in dtypes]
        return said, travels, self._agreement.call(said, values)
