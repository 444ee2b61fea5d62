"""What is drawn for rows that were joined is one device's: view after view, batch after batch."""

from __future__ import annotations

import pytest
import torch
import torch_joined

import dream
from dream.adapters.pytorch.randomness.joins import Joins, joins, repeating
from dream.adapters.pytorch.randomness.rows import Place, Rows
from dream.data.partition import Division


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_views_and_batches_that_are_joined_are_drawn_for_as_on_one_device(ranks: int) -> None:
    act = torch_joined.in_and_out
    found, *_ = dream.launch(act, n=ranks, framework="torch", timeout=300)
    assert {form: far for form, far in found.items() if not far < 1e-6} == {}


@pytest.mark.slow
def test_views_joined_to_another_batch_are_no_coupling() -> None:
    """`strict=True` refused them; and ranks took one loss of both batches for different ones'."""
    far = dream.launch(torch_joined.strictly, n=3, framework="torch", timeout=120)
    assert max(far) < 1e-6


def test_rows_of_several_batches_are_taken_and_put_back_one_after_another() -> None:
    whole = torch.arange(2 * (5 + 5 + 3)).view(-1, 1)
    runs = [Rows.of(Division(2).share(total, 1)) for total in (5, 5, 3)]
    rows = Rows.join([Rows.join(runs[:2]), runs[2]])
    taken = rows.take(whole, Place(0, 2))
    assert taken.flatten().tolist() == [2, 3, 6, 7, 12, 13, 16, 17, 22, 23]
    back = torch.zeros_like(whole)
    rows.put(back, taken, Place(0, 2))
    assert torch.equal(back[back > 0], taken.flatten())
    apart = runs[0].take(torch.arange(10), Place(0, 2, copies=True))
    assert apart.tolist() == [1, 3, 6, 8]


def test_what_every_rank_has_whole_is_no_batchs() -> None:
    """Of an evaluation's rows: an index of two rows was taken for them (2e-1 in PyG's graphs)."""
    joins = Joins()
    joins.share_of = lambda x: Division(1).share(1, 0) if len(x) == 1 else None
    pieces = [torch.zeros(1, 3), torch.ones(1, 3)]
    joins.note(torch.cat(pieces), pieces)
    rows = Rows.of(Division(2).share(8, 0))
    assert joins.rows_of(torch.zeros(2, 5), rows, []) is None


@pytest.mark.parametrize(("name", "times"), [("repeat", (2, 1, 1)), ("expand", (2, -1, -1))])
def test_all_rows_that_are_repeated_by_a_dim_of_their_own_are_joined(
    name: str, times: tuple[int, ...]
) -> None:
    """Where a loop began with it late, dropout was another's (2e-2)."""
    x, rows = torch.randn(4, 3), Rows.of(Division(2).share(8, 0))
    joins.forget()
    made = repeating(name, getattr(torch.Tensor, name))(x[None], *times).reshape(-1, 3)
    found = joins.rows_of(made, rows, [])
    joins.forget()
    assert found == Rows.join([rows] * 2, flat=True)
