"""What is dealt out to the ranks: parts that agree but for their rows."""

from __future__ import annotations

from collections.abc import Sequence

from dream._errors import ConfigurationError
from dream.collectives.agreement import Agreement
from dream.collectives.board import Said, in_words
from dream.collectives.members import Members
from dream.collectives.tensors import SIZES, Tensors, check_moves
from dream.collectives.transport import Length, Native, Tensor

_NAMES = [*SIZES]
_MOST_DIMS = 12


def plan(
    tensors: Tensors,
    agreement: Agreement,
    members: Members,
    parts: Sequence[Native],
    root: int,
    like: Tensor | None,
) -> tuple[str, list[Length]]:
    """The dtype and shape of this rank's part, which only root knows. parts: on root alone."""
    if members.rank == root:
        check_parts(tensors, parts, members.size)
    if tensors.in_graph():
        return _as_like(tensors, agreement, root, like)
    said = Said("scatter", arguments={"root": root})
    numbers = _header(tensors, parts) or [0] * (2 + _MOST_DIMS + members.size)
    code, dims, *rest = agreement.header(said.call([]), numbers, root)
    if not dims:
        return _NAMES[code], []
    return _NAMES[code], [rest[_MOST_DIMS + members.rank], *rest[: dims - 1]]


def _header(tensors: Tensors, parts: Sequence[Native]) -> list[int]:
    """dtype, dims, the dims after the first, the rows of each part."""
    if not parts:
        return []
    shape = [int(size) for size in tensors.sizes(parts[0])]
    if len(shape) > _MOST_DIMS:
        raise ConfigurationError(
            f"A part has too many dims to be scattered. Received: {len(shape)}. Reshape it to "
            f"at most {_MOST_DIMS}."
        )
    check_moves(tensors.dtype(parts[0]))
    rows = [int(tensors.sizes(part)[0]) if shape else 1 for part in parts]
    rest = shape[1:] + [0] * (_MOST_DIMS - len(shape[1:]))
    return [_NAMES.index(tensors.dtype(parts[0])), len(shape), *rest, *rows]


def _as_like(
    tensors: Tensors, agreement: Agreement, root: int, like: Tensor | None
) -> tuple[str, list[Length]]:
    if like is None:
        raise ConfigurationError(
            "Inside a tf.function scatter must know the dtype and shape of its part. Received: no "
            "like=. Give a tensor of the dtype and shape of this rank's part, on every rank."
        )
    value = tensors.take(like)
    dtype = tensors.dtype(value)
    check_moves(dtype)
    said = Said("scatter", [dtype], {"root": root})
    value, _ = agreement.lengths(said, value)
    return dtype, tensors.sizes(value)


def check_parts(tensors: Tensors, parts: Sequence[Native], size: int) -> None:
    """Refuse parts that are not one for each rank, alike but for their rows."""
    if len(parts) != size:
        raise ConfigurationError(
            f"scatter needs one part per rank. Received: {len(parts)} parts, world size {size}."
        )
    kinds = {f"{tensors.dtype(part)} {_but_rows(tensors.shape(part))}" for part in parts}
    if len(kinds) > 1:
        raise ConfigurationError(
            f"Parts may differ only in dim 0. Received: {', '.join(sorted(kinds))}. Give them one "
            "dtype and the same other dims."
        )


def _but_rows(shape: Sequence[int | None]) -> str:
    return in_words(["*", *map(str, shape[1:])]) if shape else "()"


def cut(tensors: Tensors, x: Native, splits: Sequence[int] | None, size: int) -> list[Native]:
    """The rows of `x` for each rank. splits: how many each gets; None for equal shares."""
    rows = tensors.sizes(x)[0]
    if splits is None:
        if isinstance(rows, int) and rows % size:
            raise ConfigurationError(
                f"{rows} rows cannot be divided evenly among {size} ranks. Received: no splits. "
                f"Pass splits=, {size} numbers of rows."
            )
        return tensors.cut(x, [rows // size] * size)
    if len(splits) != size or (isinstance(rows, int) and sum(splits) != rows):
        raise ConfigurationError(
            f"splits= must give a number of rows for each rank. Received: {list(splits)} for "
            f"{rows} rows and world size {size}."
        )
    return tensors.cut(x, splits)
