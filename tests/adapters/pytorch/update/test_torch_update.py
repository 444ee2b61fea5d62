"""Adasum of four, master weights, and draws that are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch_update
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dream

pytestmark = pytest.mark.slow


def _pair(a: Any, b: Any) -> Any:
    """The paper's formula, as Horovod's core has it."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    dot, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    share_a = 1 - dot / of_a / 2 if of_a >= 1e-8 else 1.0
    share_b = 1 - dot / of_b / 2 if of_b >= 1e-8 else 1.0
    return share_a * a + share_b * b


def test_adasum_of_four_is_that_of_pairs_of_pairs() -> None:
    ranks = dream.launch(torch_update.adasum, n=4, framework="torch", timeout=500)
    for index, found in enumerate(ranks[0]["found"]):
        a, b, c, d = (rank["own"][index] for rank in ranks)
        wanted = _pair(_pair(a, b), _pair(c, d))
        for rank in ranks:
            assert np.array_equal(rank["found"][index], found)
            assert np.allclose(rank["found"][index], wanted, rtol=1e-5, atol=1e-7)


def test_masters_keep_what_float16_cannot() -> None:
    """The named wrong cell: updates that round to nothing."""
    moved = torch_update.moved()
    assert moved["O2"] == pytest.approx(moved["float32"], rel=0.05)
    assert moved["O3"] == 0.0


def test_states_of_a_model_with_masters_are_read_again() -> None:
    """But for the rounding of a model that was written in float16."""
    whole, resumed = torch_update.resumed()
    for a, b in zip(whole, resumed, strict=True):
        assert np.abs(a - b).max() <= 2e-3


def test_what_was_drawn_is_drawn_again_whoever_drew_since() -> None:
    assert torch_update.drawn_again() == [0.0] * 8


def test_weights_that_are_loaded_in_pieces_are_stepped_from() -> None:
    for rank in dream.launch(torch_update.loaded_in_pieces, n=2, framework="torch", timeout=120):
        assert rank == [0.0] * 4


def taking_turns(kind: str) -> None:
    torch.manual_seed(3)
    critic, maker = nn.Linear(6, 4), nn.Linear(6, 6)
    first, second = (torch.optim.SGD(model.parameters(), 0.1) for model in (critic, maker))
    for (x,) in DataLoader(TensorDataset(torch.randn(16, 6)), batch_size=8):
        first.zero_grad()
        critic(x).pow(2).mean().backward()
        if kind == "turns":
            first.step()
        second.zero_grad()
        (critic(maker(x)) if kind == "turns" else maker(x)).mean().backward()
        if kind == "together":
            first.step()
        second.step()


def both_ways() -> None:
    for kind in ("together", "turns"):
        with dream.strategy("mirrored", accumulate=2):
            taking_turns(kind)


def test_a_model_that_is_called_before_its_step_is_made_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In silence a GAN saw the critic as it was before its step, in all micro-batches but one."""
    dream.launch(both_ways, n=2, framework="torch", timeout=120)
    assert capfd.readouterr().err.count("a model is called after its SGD.step") == 1


def penalised(micros: int) -> list[float]:
    """Batches of 8, 8 and 3."""
    torch.manual_seed(3)
    with dream.strategy("mirrored", accumulate=micros):
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in DataLoader(TensorDataset(torch.randn(19, 6), torch.randn(19, 4)), batch_size=8):
            optimizer.zero_grad()
            penalty = sum(p.square().sum() for p in model.parameters())
            (F.mse_loss(model(x), y) + 0.5 * penalty).backward()
            optimizer.step()
    return [float(x) for p in model.parameters() for x in p.detach().flatten()]


def test_a_penalty_counts_once_for_an_update() -> None:
    """In silence it counted once for each micro-batch."""
    (expected,) = dream.launch(penalised, 1, n=1, framework="torch", timeout=120)
    for found in dream.launch(penalised, 2, n=2, framework="torch", timeout=120):
        assert found == pytest.approx(expected, rel=0, abs=1e-6)
