"""Steps of split models by the strategies' own code, without values, in a make-believe world."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import plan_models
import pytest
import torch
from torch import nn

from dream import Unsupported
from dream._topology import Mesh
from dream.adapters.pytorch.tools.planning import rehearsal, sketching
from dream.tools.plan import traffic
from dream.tools.plan.asked import TrainingSpec
from dream.tools.plan.sketch import Candidate, Rehearsal

PARAMETERS = 41_170
TRAINING = TrainingSpec("adamw", "float32", fused=False)
WIDTH, TOKENS, LOSS = 32, 16, 24


def rehearse(candidate: Candidate, batch: int, build: Any = plan_models.tokens) -> list[Rehearsal]:
    found = sketching.make_sketcher(build, TRAINING).rehearse(candidate, batch)
    assert found is not None
    return found


def given(one: Rehearsal) -> dict[str, int]:
    found: dict[str, int] = {}
    for sending in one.sent:
        found[sending.operation] = found.get(sending.operation, 0) + sending.count * sending.size
    return found


@pytest.mark.parametrize("zero", [2, 3])
def test_shards_hold_their_share_and_gather_the_rest(zero: int) -> None:
    (found,) = rehearse(Candidate("sharded", Mesh(1, 2), zero=zero), 8)
    assert found.parameters == found.gradients == 4 * PARAMETERS // 2
    counters = 49 * 4  # a step count for each parameter
    assert abs(found.state - found.parameters * 2 - counters) < 100
    blocks = 3 * 12_640 * 4
    sent = given(found)
    assert sent["all_gather"] == 4 * PARAMETERS + (blocks if zero == 3 else 0)
    assert sent["reduce_scatter"] == 4 * PARAMETERS
    assert sent["all_reduce"] == LOSS


def test_groups_of_hybrid_shards_add_their_shards_up() -> None:
    """Within a group as shards alone do; over the groups each rank's shard, behind backward."""
    (alone,), (found,) = (
        rehearse(Candidate("sharded", Mesh(data, 2), zero=3), 8) for data in (1, 2)
    )
    assert (found.parameters, found.gradients) == (alone.parameters, alone.gradients)
    over = [one for one in found.sent if one.axis == "data"]
    assert {(one.operation, one.phase) for one in over} == {("all_reduce", "backward")}
    assert sum(one.count * one.size for one in over) == 4 * PARAMETERS // 2
    assert given(alone) == given(replace(found, sent=[s for s in found.sent if s not in over]))


def normalising() -> Any:
    model = nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 3),
    )  # fmt: skip
    return model, (torch.randn(16, 20), torch.randint(0, 3, (16,)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("sharded", Mesh(1, 2), zero=2),
        Candidate("sharded", Mesh(1, 2), zero=3),
        Candidate("tensor", Mesh(2, 2)),
    ],
    ids=str,
)
def test_batch_norm_sums_over_the_samples_of_all_ranks(candidate: Candidate) -> None:
    """Forward and backward, once each, and no running statistics are averaged behind it."""
    (found,) = rehearse(candidate, 8, normalising)
    axis = "model" if candidate.kind == "sharded" else "data"
    sizes = {
        (one.size, one.phase): one.count
        for one in found.sent
        if one.operation == "all_reduce" and one.axis == axis
    }
    forward, backward = traffic.normalised(64, 4)
    assert (sizes[forward, "forward"], sizes[backward, "backward"]) == (1, 1)
    running = 4 * 2 * 64
    assert (running, "forward") not in sizes


def test_a_stage_may_have_no_parameters() -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(20, 3), nn.ReLU()), (torch.randn(16, 20), torch.randn(16, 3))

    found = rehearse(Candidate("pipeline", Mesh(1, 2), microbatches=4), 8, build)
    assert [one.parameters for one in found] == [4 * (20 * 3 + 3), 0]


def test_tensor_parallelism_adds_up_where_the_strategy_does() -> None:
    """Two sums a block forward and four backward, queries, keys and values one by one; the
    embedding's rows once."""
    (found,) = rehearse(Candidate("tensor", Mesh(1, 2)), 8)
    whole = 8 * TOKENS * WIDTH * 4
    count = given(found)["all_reduce"] / whole
    assert count == int(count)
    blocks = 3 * (2 + 3 + 1) + 1
    assert count == blocks
    assert found.parameters < 0.6 * 4 * PARAMETERS
    assert {sending.axis for sending in found.sent} == {"model"}


def test_copies_add_up_gradients_along_the_data_axis() -> None:
    (found,) = rehearse(Candidate("tensor", Mesh(2, 2)), 8)
    along = [one for one in found.sent if one.axis == "data"]
    assert sum(one.count * one.size for one in along) == found.gradients + LOSS


@pytest.mark.slow
@pytest.mark.parametrize(
    "candidate",
    [Candidate("sharded", Mesh(1, 2), zero=3), Candidate("tensor", Mesh(2, 2))],
    ids=str,
)
def test_parameters_that_are_alike_are_stepped_once_and_count_each(
    candidate: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    (once,) = rehearse(candidate, 8)
    monkeypatch.setattr(rehearsal, "step_twins_once", lambda optimizer, _: optimizer.step)
    (each,) = rehearse(candidate, 8)
    assert Counter(once.ops) == Counter(each.ops)
    assert replace(once, ops=()) == replace(each, ops=())


def test_a_pipeline_sends_what_passes_between_its_stages() -> None:
    candidate = Candidate("pipeline", Mesh(1, 2), microbatches=4)
    first, last = rehearse(candidate, 8)
    passed = 8 * TOKENS * WIDTH * 4
    told = 16  # the loss and what it counted, in float64
    assert given(first) == {"send": passed, "receive": passed + told}
    assert given(last) == {"send": passed + told, "receive": passed}
    assert first.parameters + last.parameters == 4 * PARAMETERS


def test_the_first_stage_keeps_more_microbatches() -> None:
    one, two = (
        rehearse(Candidate("pipeline", Mesh(1, 2), microbatches=count), 16)[0].activations
        for count in (2, 8)
    )
    assert two < one  # as many in flight, of a quarter of the samples


def plain() -> Any:
    return nn.Sequential(nn.Linear(5, 3)), (torch.ones(4, 5), torch.ones(4, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "build", "words"),
    [
        (Candidate("pipeline", Mesh(1, 8), microbatches=8), plan_models.dense, "8 stages"),
        (Candidate("pipeline", Mesh(1, 2), microbatches=2), plan_models.images, "normalise"),
        (Candidate("tensor", Mesh(1, 2)), plain, "nothing to cut"),
    ],
)
def test_what_the_strategy_refuses_is_refused(candidate: Candidate, build: Any, words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        rehearse(candidate, 8, build)
