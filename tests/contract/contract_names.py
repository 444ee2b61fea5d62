"""Which cell runs which case."""

from __future__ import annotations

import contract_keras_names
import contract_torch_names
from contract_cells import Cell

CORE = {
    "torch": contract_torch_names.CORE,
    "keras_tf": contract_keras_names.CORE,
    "keras_torch": contract_keras_names.CORE,
}


def runs(cell: Cell, case: str) -> bool:
    """Whether the cell runs the case: all of them, or those that every cell runs."""
    return not cell.core or case in CORE[cell.kind]
