"""Whose order the batches come in that servers deal."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dream.adapters.pytorch.data.modes import Modes
from dream.adapters.pytorch.parallel.parameter_server.loader import LeasedLoaders


@pytest.mark.parametrize(
    ("shuffle", "seed", "lines"), [(True, None, 1), (True, 3, 0), (False, None, 0)]
)
def test_an_order_that_is_not_the_scripts_is_said_once(
    shuffle: bool, seed: int | None, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker = SimpleNamespace(worker=SimpleNamespace(job=SimpleNamespace(in_step=False)))
    loaders = LeasedLoaders(cast(Any, worker), seed, Modes())
    with caplog.at_level(logging.INFO, logger="dream"):
        logging.getLogger("dream").propagate = True
        for _ in range(2):
            loaders.lease(DataLoader(TensorDataset(torch.zeros(8, 1)), 4, shuffle=shuffle))
    assert sum("not in the script's own" in line for line in caplog.messages) == lines


def test_a_model_in_eval_mode_is_given_every_sample_with_gradients_on_too() -> None:
    worker = SimpleNamespace(worker=SimpleNamespace(job=SimpleNamespace(in_step=False)))
    model, modes = nn.Linear(1, 1), Modes()
    modes.add(model)
    loader = DataLoader(TensorDataset(torch.arange(10)), 4)
    LeasedLoaders(cast(Any, worker), 0, modes).lease(loader)
    model.eval()
    assert [len(x) for (x,) in loader] == [4, 4, 2]
    model.train()
    with pytest.raises(AttributeError, match="begin"):  # a lease is asked for
        next(iter(loader))
