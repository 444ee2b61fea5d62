"""Whose order the batches come in that servers deal."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dream.adapters.pytorch.parallel.parameter_server.loader import LeasedLoaders


@pytest.mark.parametrize(
    ("shuffle", "seed", "lines"), [(True, None, 1), (True, 3, 0), (False, None, 0)]
)
def test_an_order_that_is_not_the_scripts_is_said_once(
    shuffle: bool, seed: int | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker = SimpleNamespace(worker=SimpleNamespace(job=SimpleNamespace(in_step=False)))
    loaders = LeasedLoaders(cast(Any, worker), seed)
    with caplog.at_level(logging.INFO, logger="dream"):
        logging.getLogger("dream").propagate = True
        for _ in range(2):
            loaders.lease(DataLoader(TensorDataset(torch.zeros(8, 1)), 4, shuffle=shuffle))
    assert sum("not in the script's own" in line for line in caplog.messages) == lines
