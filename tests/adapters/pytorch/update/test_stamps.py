"""What is gone leaves its id, and its memory, to another: that is not taken for the first."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dream.adapters.pytorch import loose_parameters
from dream.adapters.pytorch.data.held_batch import Marks
from dream.adapters.pytorch.data.replicated_rows import ReplicatedRows
from dream.adapters.pytorch.loss.coupling.unconnected_terms import UnconnectedTerms
from dream.adapters.pytorch.parallel.pipeline.stages import StageParameters
from dream.adapters.pytorch.parallel.replicas.traces import Traces
from dream.adapters.pytorch.randomness.joins import Joins
from dream.adapters.pytorch.randomness.rows import Rows
from dream.adapters.pytorch.randomness.words import goes_on, places_of
from dream.adapters.pytorch.update.stamps import Stamps
from dream.adapters.pytorch.update.waiting_hooks import WaitingHooks
from dream.data.partition import Division, Share


def at(place: int, of: Callable[[Any], int], make: Callable[[], Any]) -> Any:
    """Make such until one comes to lie there."""
    others = []
    for turn in range(10_000):
        made = make()
        if of(made) == place:
            return made
        others.append(made)
        if turn % 100 == 0:
            others.clear()
    pytest.skip("none came to lie there")


def parameter(values: int = 3) -> nn.Parameter:
    return nn.Parameter(torch.zeros(values))


def test_another_tensor_with_the_id_of_one_that_is_gone_is_another() -> None:
    x = torch.zeros(3)
    stamps, place = Stamps([x, None]), id(x)
    assert stamps.are_of([x, None])
    assert not stamps.are_of([x])
    x += 1
    assert not stamps.are_of([x, None])
    assert stamps.are_of([x, None], unwritten=False)
    del x
    other = at(place, id, lambda: torch.ones(3))
    assert not stamps.are_of([other, None], unwritten=False)


def test_a_gradient_is_the_same_as_long_as_it_is_there() -> None:
    """Nobody but its parameter need hold it."""
    weight = parameter()
    (weight * 2).sum().backward()
    stamps = Stamps([weight.grad])
    gc.collect()
    assert stamps.are_of([weight.grad])


def test_a_gradient_that_takes_anothers_place_is_seen() -> None:
    """As where a graph of the gradient is made: each backward pass gives another tensor."""
    weight = parameter()
    weight.grad = torch.zeros(3)
    place = id(weight.grad)
    held = loose_parameters._Held([weight])
    assert held.reached() == []
    weight.grad = None
    weight.grad = at(place, id, lambda: torch.ones(3))
    assert held.reached() == [weight]


def test_rows_that_lie_where_joined_ones_did_are_none_of_theirs() -> None:
    joins, rows = Joins(), Rows.of(Division(2).share(8, 0))
    pieces, memory = [torch.zeros(4, 3), torch.ones(4, 3)], np.zeros((8, 3), np.float32)
    turned = torch.from_numpy(memory)
    joins.note(turned.view(2, 4, 3), pieces, flat=True, turns=True)
    assert joins.rows_of(turned, rows, []) == Rows.join([rows] * 2, flat=True)
    del turned
    assert joins.rows_of(torch.from_numpy(memory), rows, []) is None


def test_what_lies_where_a_batch_did_is_no_batchs() -> None:
    marks, memory = Marks(), np.zeros((4, 3), np.float32)
    marks.put(batch := torch.from_numpy(memory), Share(4, 8, 2), None, 1)
    assert marks.of(batch.view(-1)) is not None
    batch.data = torch.ones(4, 3)
    assert marks.of(torch.from_numpy(memory)) is None
    assert marks.of(batch) is not None


def test_what_lies_where_drawn_rows_did_is_drawn_by_nobody() -> None:
    whole, memory = ReplicatedRows(), np.zeros((4, 3), np.float32)
    whole.drawn(z := torch.from_numpy(memory), None)
    assert z.view(-1) in whole
    z.data = torch.ones(4, 3)
    assert torch.from_numpy(memory) not in whole
    assert z in whole


def test_a_term_of_another_leaf_is_another() -> None:
    """A leaf that is made anew in each step had the id of the one before, on some rank alone."""
    apart, leaf = UnconnectedTerms(), parameter()
    form = apart._form((leaf * 2).sum().grad_fn)
    assert form == apart._form((leaf * 2).sum().grad_fn)
    place = id(leaf)
    del leaf
    gc.collect()
    other = at(place, id, parameter)
    assert form != apart._form((other * 2).sum().grad_fn)


def test_hooks_of_one_that_is_gone_are_not_moved_to_another() -> None:
    hooks, old = WaitingHooks(accumulates=False), parameter()
    waiting, place, new = hooks.add(old, lambda x: x, after=False), id(old), parameter()
    del old
    hooks.move(at(place, id, parameter), new)
    assert waiting.key == place


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = SimpleNamespace()


def test_what_a_call_keeps_is_seen_though_it_has_the_id_of_what_was_kept() -> None:
    module = Keeps()
    traces = Traces([module])
    place, module.last = id(module.last), None
    others = [SimpleNamespace() for _ in range(100)]  # one of them has its id, if it was let go
    module.last = next((x for x in others if id(x) == place), others[0])
    assert "Keeps.last" in traces.found()


def test_an_optimizer_of_one_that_has_the_id_of_a_dropped_parameter_is_foreign() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    stages = StageParameters(model, {"0.weight": 0, "1.weight": 1}, mine=0)
    place = id(model[1].weight)
    assert stages.holds(torch.optim.SGD(model.parameters()))
    stages.drop_others()
    gc.collect()
    assert stages.holds(torch.optim.SGD(model.parameters()))
    other = at(place, id, lambda: nn.Parameter(torch.zeros(2, 2)))
    assert not stages.holds(torch.optim.SGD([other]))


def frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def turn(*, looks: bool) -> tuple[FrameType, Any]:
    if looks:
        return sys._getframe(), places_of(frames())
    for _ in range(1):
        there = places_of(frames())
    return sys._getframe(), there


def test_a_functions_loop_that_has_ended_does_not_go_on_in_its_next_call() -> None:
    """That was so only where the next call's frame happened to have the id of the first one's."""
    for _ in range(1):
        first, then = turn(looks=False)
        second, now = turn(looks=True)
        assert first is not second
        assert not goes_on(then, now)
