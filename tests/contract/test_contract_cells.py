"""Every cell of the grid is run or says why it cannot be, never silently left out."""

from __future__ import annotations

import contract_names
import pytest
from contract_cells import KERAS_TF, KERAS_TORCH, TORCH, Cell, Kind

from dream.strategies.registry import STRATEGIES
from dream.strategies.spec import SPECS

SPLIT = ("data_parallel", "model_parallel", "hybrid", "sharded")
ELSEWHERE = ("parameter_server", "local_sgd")  # they have laws of their own: tests/parameter_server
CELLS = TORCH + KERAS_TF + KERAS_TORCH


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_cell_runs_here(cell: Cell) -> None:
    if cell.unavailable:
        pytest.skip(cell.unavailable)


@pytest.mark.parametrize("cells", [TORCH, KERAS_TF, KERAS_TORCH], ids=["torch", "tf", "keras"])
def test_every_strategy_and_reduction_has_its_cells(cells: list[Cell]) -> None:
    """Whatever name or reduction is added to the tables needs cells here."""
    framework, keras = cells[0].framework, cells is KERAS_TORCH
    for name in (name for kind, name in STRATEGIES if kind == framework and name != "single"):
        here = [cell for cell in cells if cell.strategy == name]
        if name in ELSEWHERE:
            assert not here, name
            continue
        if keras and name in SPLIT:
            continue  # refused by name; tests/adapters/pytorch/parallel holds that
        split = {cell.processes for cell in here if cell.options}
        assert split <= {1, 2, 4}, name
        each = {cell.replicas for cell in here if cell.processes in (1, cell.replicas)}
        assert split or each == {2, 3}, name
        assert name in SPECS
    reductions = {cell.reduction for cell in cells} - {"auto"}
    assert reductions | {"horovod"} == set(SPECS["mirrored"].reductions[framework])


@pytest.mark.parametrize("kind", ["torch", "keras_tf", "keras_torch"])
def test_what_the_core_leaves_out_is_run_by_another_cell(kind: Kind) -> None:
    full = [c for c in CELLS if c.kind == kind and not c.core and not c.unavailable]
    rings = {"horovod" in (cell.strategy, cell.reduction) for cell in full}
    assert rings == {True, False}
    assert contract_names.runs(full[0], "anything")
