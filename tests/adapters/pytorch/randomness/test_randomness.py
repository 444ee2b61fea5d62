"""Random numbers on many ranks are those of one device: draws, orders, splits, folds."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_randomness
from torch.nn import functional

import dream
from dream.adapters.pytorch.randomness import generators
from dream.adapters.pytorch.randomness.calls import patches
from dream.adapters.pytorch.randomness.current import current
from dream.adapters.pytorch.randomness.parameters import has_rows
from dream.adapters.pytorch.randomness.rows import Rows, spread_for
from dream.data.partition import Division

ROWS = 13
X = torch.randn(ROWS, 6, 4, 4, generator=torch.Generator().manual_seed(1))
WIDE = X.to(memory_format=torch.channels_last)
FLAT = X.reshape(ROWS, -1)
MANY = X.reshape(ROWS * 6, 4, 4)

DRAWS: dict[str, Any] = {
    "dropout": lambda x: F.dropout(x(X), 0.3),
    "dropout_channels_last": lambda x: F.dropout(x(WIDE), 0.3),
    "dropout_in_place": lambda x: F.dropout(x(X).clone(), 0.3, inplace=True),
    "dropout_of_heads": lambda x: F.dropout(x(MANY), 0.3),
    "dropout_expanded": lambda x: F.dropout(x(FLAT)[:, None].expand(-1, 3, -1), 0.3),
    "dropout_half": lambda x: F.dropout(x(X.bfloat16()), 0.3),
    "dropout2d": lambda x: F.dropout2d(x(X), 0.3),
    "alpha": lambda x: F.alpha_dropout(x(FLAT), 0.3, training=True),
    "feature_alpha": lambda x: F.feature_alpha_dropout(x(X), 0.3, training=True),
    "bernoulli": lambda x: torch.bernoulli(x(FLAT).sigmoid()),
    "bernoulli_of_a_tensor": lambda x: x(FLAT).sigmoid().bernoulli(),
    "bernoulli_": lambda x: torch.zeros_like(x(FLAT)).bernoulli_(x(FLAT).sigmoid()),
    "multinomial": lambda x: torch.multinomial(x(FLAT).exp(), 3, replacement=True),
    "randn_like": lambda x: torch.randn_like(x(WIDE)),
    "rand": lambda x: torch.rand(len(x(X)), 5),
    "randint": lambda x: torch.randint(3, 90, (len(x(X)),)),
    "normal": lambda x: torch.normal(x(FLAT), 0.5),
    "normal_": lambda x: torch.empty_like(x(WIDE)).normal_(1.0, 2.0),
    "exponential_": lambda x: torch.empty_like(x(FLAT)).exponential_(),
    "beta": lambda x: torch.distributions.Beta(torch.full((len(x(X)), 1), 0.4), 2.0).sample(),
    "gumbel": lambda x: F.gumbel_softmax(x(FLAT)),
}


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_gives_a_rank_its_rows_to_the_bit(name: str, parts: int) -> None:
    torch.manual_seed(4)
    whole = DRAWS[name](lambda x: x)
    after = torch.get_rng_state()
    patches.put()
    try:
        for rank in range(parts):
            share = Division(parts).share(ROWS, rank)
            torch.manual_seed(4)
            current.call = Rows.of(share)
            mine = DRAWS[name](lambda x, r=rank: _rows(x, r, parts))
            current.call = None
            assert torch.equal(mine, _rows(whole, rank, parts))
            assert torch.equal(torch.get_rng_state(), after)
    finally:
        current.call = None
        patches.take_back()
    assert functional.dropout.__module__ == "torch.nn.functional"
    assert "normal_" not in vars(torch.Tensor)


def test_what_a_gpu_draws_in_another_order_has_gaps_for_the_whole_batch_too() -> None:
    """Its kernel of dropout goes another way through a tensor that is a part of a larger one. A CPU
    has one way, so a GPU's masks of `tokens[:, 0]` were not those of one device."""
    tokens = torch.zeros(4, 5, 6)
    for given in (tokens[:, 0], tokens[:1, 0], tokens[..., 2:], tokens[:0, 0]):
        made = spread_for(given, (9, *given.shape[1:]))
        assert (made.shape, made.is_contiguous()) == ((9, *given.shape[1:]), False)
    for given in (tokens, tokens[:1], tokens[1:3], tokens.flatten(0, 1)):
        assert spread_for(given, (9, *given.shape[1:])).is_contiguous()
    turned = spread_for(tokens.transpose(0, 1), (5, 9, 6))
    assert turned.stride() == (6, 30, 1)


def test_a_transposed_batch_of_one_row_is_drawn_in_its_own_order() -> None:
    """As attention leaves it: (places, samples, width), with the samples first."""
    whole = torch.zeros(4, 3, 6).transpose(0, 1)
    torch.manual_seed(4)
    right = F.dropout(whole + 1.0, 0.3)
    patches.put()
    try:
        torch.manual_seed(4)
        current.call = Rows.of(Division(3).share(3, 1))
        mine = F.dropout(torch.ones(4, 1, 6).transpose(0, 1), 0.3)
    finally:
        current.call = None
        patches.take_back()
    assert torch.equal(mine, right[1:2])


def _rows(x: torch.Tensor, rank: int, parts: int) -> torch.Tensor:
    each = len(x) // ROWS
    if each == 1:
        return x[rank::parts]
    return x.view(ROWS, each, *x.shape[1:])[rank::parts].flatten(0, 1)


def test_a_table_is_no_ranks_rows() -> None:
    """What is made of parameters alone, and torch.rand(1), are drawn as they are."""
    table = torch.nn.Parameter(torch.ones(8, 4))
    patches.put()
    try:
        current.call = Rows.of(Division(2).share(8, 0))
        for draw in (
            lambda: F.dropout(table[:4], 0.5),
            lambda: torch.randn_like(table),
            lambda: torch.rand(1),
        ):
            torch.manual_seed(0)
            mine = draw()
            held, current.call = current.call, None
            torch.manual_seed(0)
            assert torch.equal(mine, draw())
            current.call = held
    finally:
        current.call = None
        patches.take_back()


def test_positions_that_are_spread_over_a_batch_of_one_sample_are_its_row() -> None:
    """A share of two samples has them twice, and a table's own rows have them once."""
    table, at = torch.nn.Embedding(8, 3), torch.arange(4)
    assert has_rows("dropout", table(at.expand(1, 4)), 1, set(), 1)
    assert has_rows("dropout", table(at.expand(2, 4)), 2, set(), 1)
    assert not has_rows("dropout", table(at), 4, set(), 1)


@cache
def _in_and_out(ranks: int) -> list[dict[str, Any]]:
    act = torch_randomness.in_and_out
    return dream.launch(act, n=ranks, framework="torch", timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", torch_randomness.SCRIPTS)
def test_a_script_learns_what_it_learns_without_dream(name: str, ranks: int) -> None:
    found = [rank[name] for rank in _in_and_out(ranks)]
    assert max(difference for difference, _ in found) < 1e-6
    for _, parameters in found[1:]:
        assert np.array_equal(parameters, found[0][1])


@cache
def _said() -> list[dict[str, Any]]:
    return dream.launch(torch_randomness.said, n=2, framework="torch", timeout=300)


@pytest.mark.slow
def test_what_is_not_of_one_device_is_said_once() -> None:
    first, _ = _said()
    assert not [line for line in first["dropout"] if "random" in line]
    (line,) = [line for line in first["fused"] if "random" in line]
    assert line.startswith("a call of LSTM has dropout inside LSTM: each rank draws")
    by_rank, order = [line for line in first["seeded_by_rank"] if "the loop itself" not in line]
    assert by_rank.startswith("the script seeds its generators by rank")
    assert order.startswith("the ranks' samplers draw different orders: rank 0's is used")
    (sizes,) = [line for line in first["sizes"] if "loaders" in line]
    assert "batch sizes (rank 0 16, rank 1 32): rank 0's batches are used" in sizes


@pytest.mark.slow
def test_a_loop_that_draws_by_a_function_it_kept_is_told() -> None:
    """Shares of one size draw alike, so nothing else shows it."""
    first, _ = _said()
    (line,) = [line for line in first["kept"] if "random" in line]
    assert line.startswith("the loop has random draws by an operation that dream does not know")
    for name in ("seeds in the loop", "known"):
        assert not [line for line in first[name] if "not know" in line]
    (line,) = [line for line in first["by row"] if "for each row of a rank" in line]
    assert line.startswith("torch.rand in the loop draws once for each row")


@pytest.mark.slow
def test_compiled_code_that_draws_later_than_it_first_did_is_told() -> None:
    for heard in _said():
        (line,) = [line for line in heard["late"] if "compiled code" in line]
        assert "which its first calls had not" in line


@pytest.mark.slow
def test_generators_are_in_step_after_local_draws() -> None:
    first, second = _said()
    assert first["alike"] == second["alike"]
    assert first["next"] == second["next"]
    assert first["masks"] != second["masks"]


@pytest.mark.slow
def test_generators_are_in_step_where_rank_0s_order_is_used() -> None:
    """Its sampler has drawn from the generator, those of the others not."""
    first, second = _said()
    assert any("all go on as rank 0" in line for line in first["passes"])
    assert first["begun"] == second["begun"]


@pytest.mark.slow
def test_rank_0s_order_is_used_where_a_script_seeds_by_rank() -> None:
    first, second = _said()
    whole = torch_randomness.data().tensors[1]
    dealt = [y for rank in (first, second) for batch in rank["order"] for y in batch]
    assert sorted(dealt) == sorted(whole.tolist())


def test_a_draw_from_numpy_or_for_each_row_from_python_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", logger="dream")
    monkeypatch.setattr(generators, "_told", set())
    own = random.Random(3)

    def seen(draw: Callable[[], object]) -> str:
        caplog.clear()
        for _ in range(2):
            watch = generators.DrawWatch()
            watch.handed(4)
            draw()
            watch.asked()
        return caplog.text

    assert seen(lambda: (random.random(), own.random())) == ""
    assert seen(lambda: np.random.rand(3)).count("np.random.rand") == 1
    assert seen(lambda: [own.random() for _ in range(4)]).count("[random.random()") == 1
