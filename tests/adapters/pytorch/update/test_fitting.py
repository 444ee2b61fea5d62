"""`accumulate="auto"`: memory that runs out costs time, and no number."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import fitting_scripts
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dream

STEPS = 6
RANKS = pytest.mark.parametrize("ranks", [1, 2])


@cache
def results(ranks: int) -> list[dict[str, Any]]:
    return dream.launch(fitting_scripts.everything, n=ranks, framework="torch", timeout=300)


def check_same(found: dict[str, Any], plain: dict[str, Any], atol: float = 1e-6) -> None:
    assert found["drawn"] == plain["drawn"]
    np.testing.assert_allclose(found["losses"], plain["losses"], rtol=1e-6, atol=atol)
    assert found["state"].keys() == plain["state"].keys()
    for name, value in plain["state"].items():
        np.testing.assert_allclose(found["state"][name], value, rtol=0, atol=atol, err_msg=name)


@RANKS
@pytest.mark.parametrize(
    "case",
    ["with room"]
    + [
        f"in {where}{whose}"
        for where in ("forward", "backward")
        for whose in ("", " on the last rank", " on the last rank, later")
    ],
)
def test_an_update_is_begun_again_with_the_same_numbers(ranks: int, case: str) -> None:
    """Dropout, a block left out by Python's dice, weights that a step of power iteration follows,
    and a mean over some of the rows."""
    for rank in results(ranks):
        check_same(rank[case], rank["plain"])
        more = rank[case]["called"] > rank["plain"]["called"]
        assert more == (case != "with room")


@RANKS
def test_half_precision(ranks: int) -> None:
    for rank in results(ranks):
        check_same(rank["half precision on the last rank"], rank["half precision"], 2e-2)


@RANKS
def test_batches_that_every_rank_has_whole(ranks: int) -> None:
    for rank in results(ranks):
        check_same(rank["whole batches on the last rank"], rank["whole batches"])
        assert rank["whole batches on the last rank"]["called"] > 10


@cache
def others() -> list[dict[str, Any]]:
    return dream.launch(fitting_scripts.others, n=2, framework="torch", timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", fitting_scripts.OTHERS)
def test_beside_other_options(name: str) -> None:
    for rank in others():
        check_same(rank[name]["out"], rank[name]["plain"], 5e-3 if name == "float16" else 1e-6)
        assert rank[name]["out"]["called"] > rank[name]["plain"]["called"]


@pytest.mark.slow
def test_over_a_process_group() -> None:
    for rank in dream.launch(fitting_scripts.over_gloo, n=2, framework="torch", timeout=300):
        check_same(rank["on the last rank"], rank["plain"])
        assert rank["on the last rank"]["called"] > STEPS


@RANKS
def test_where_one_row_is_too_much_the_frameworks_own_error_comes_with_a_hint(ranks: int) -> None:
    found = dream.launch(
        fitting_scripts.one_row_is_too_much, n=ranks, framework="torch", timeout=300
    )
    name, said, hint = found[-1]
    assert (name, "can't allocate memory" in said) == ("RuntimeError", True)
    assert "memory ran out with 4 micro-batches to an update, of one row each" in hint
    for name, said in found[:-1]:
        assert name == "WorkerFailed"
        assert "Another rank's memory ran out" in said


def test_a_buffer_that_follows_its_batch_is_refused() -> None:
    (said,) = dream.launch(fitting_scripts.codebook, n=1, framework="torch", timeout=300)
    assert "Received: accumulate='auto', and mean of Codebook" in said


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False)])
def test_batch_norm_is_refused_at_the_first_step(norm: nn.Module) -> None:
    with dream.strategy("mirrored", accumulate="auto") as strategy:
        model = nn.Sequential(nn.Linear(7, 3), norm)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        with pytest.raises(dream.Unsupported, match=r"and 1 \(BatchNorm1d\) in training"):
            step(torch.randn(8, 7), torch.randint(3, (8,)))


def test_batch_norm_that_is_frozen_is_not() -> None:
    with dream.strategy("mirrored", accumulate="auto") as strategy:
        model = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3).eval())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = strategy.train_step(model, F.cross_entropy, optimizer)
        assert step(torch.randn(8, 7), torch.randint(3, (8,))) > 0


def test_a_loop_of_its_own_lines_is_told_of_train_step() -> None:
    with dream.strategy("mirrored", accumulate="auto"):
        model = nn.Linear(7, 3)
        with pytest.raises(dream.ConfigurationError, match=r"Make step = strategy\.train_step"):
            model(torch.randn(8, 7))
        with torch.no_grad():
            assert model(torch.randn(8, 7)).shape == (8, 3)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "data_parallel",
            {"devices": 2},
            "cannot choose the number of micro-batches automatically",
        ),
        ("mirrored", {"compression": "float16"}, "Remove compression, or give a number"),
        ("mirrored", {"op": "adasum"}, "Remove op, or give a number"),
        ("mirrored", {"one_copy": True}, "Remove one_copy, or give a number"),
        ("mirrored", {"sync_batch_norm": True}, "Received: sync_batch_norm=True, accumulate="),
        ("mirrored", {"accumulate": "most"}, "Give int or 'auto': micro-batches"),
    ],
)
def test_what_cannot_begin_again_is_refused(name: str, options: dict[str, Any], said: str) -> None:
    with (
        pytest.raises(dream.DreamError, match=re.escape(said)),
        dream.strategy(name, framework="torch", **{"accumulate": "auto"} | options),
    ):
        pass


def test_sharded_ranks_refuse_it() -> None:
    for said in dream.launch(fitting_scripts.sharded, n=2, framework="torch", timeout=300):
        assert "'sharded' here cannot choose the number of micro-batches automatically" in said


def test_the_command_line_takes_the_word() -> None:
    from dream.strategies.spec import parse_request

    assert parse_request("mirrored:accumulate=auto")[1] == {"accumulate": "auto"}
    assert parse_request("mirrored:accumulate=4")[1] == {"accumulate": 4}
