"""Which cell runs which case."""

from __future__ import annotations

from collections.abc import Collection

import contract_keras_names
import contract_split_names
import contract_torch_names
from contract_cells import Cell


def runs(cell: Cell, case: str) -> bool:
    """Whether the cell runs the case: all of them, or those that every cell runs; less what has no
    meaning there."""
    if _without_meaning(cell, case):
        return False
    return not cell.core or case in _core(cell)


def again(cell: Cell, case: str) -> bool:
    """Whether what the cell runs is held by others too, and left to `make exhaustive`."""
    if cell.again or cell.kind.startswith("keras"):
        return cell.again or contract_keras_names.again(cell, case)
    return cell.kind == "torch" and contract_torch_names.again(
        cell.strategy, cell.reduction, cell.options, cell.processes, case
    )


def _core(cell: Cell) -> Collection[str]:
    return contract_torch_names.CORE if cell.kind == "torch" else contract_keras_names.core(cell)


def _without_meaning(cell: Cell, case: str) -> bool:
    if cell.kind == "torch":
        if case in contract_torch_names.KNOBS and not _takes(cell, case):
            return True
        split = contract_torch_names.without_meaning(cell.options, cell.replicas)
        return case in split or bool(contract_split_names.left_out(cell, case))
    return cell.kind.startswith("keras") and case in contract_keras_names.without_meaning(cell)


def _takes(cell: Cell, case: str) -> bool:
    """Whether the cell takes the options that a case is about."""
    return contract_torch_names.takes_knob(cell.strategy, cell.options, case)
