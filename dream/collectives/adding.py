"""What is to be added up: the ranks agree on it, and on the dtype it travels in."""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from dream._errors import unknown
from dream.collectives.agreement import Agreement
from dream.collectives.call import Call, Said
from dream.collectives.dtypes import carried
from dream.collectives.tensors import Tensors
from dream.collectives.wire import OPS, Native, Op


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
