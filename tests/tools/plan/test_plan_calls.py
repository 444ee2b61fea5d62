"""Operations of a step, made again by themselves."""

from __future__ import annotations

from typing import Any

import plan_models
import pytest
import torch

from dream.adapters.pytorch.tools.planning import calls, optimizing, replaying
from dream.adapters.pytorch.tools.planning.example import example
from dream.adapters.pytorch.tools.planning.ledger import Ledger


def noted(name: str) -> list[str]:
    """The calls of a step with values."""
    found = example(plan_models.MODELS[name]())
    steps = optimizing.optimizer("adamw", found.model.parameters())
    *inputs, target = found.batch_of(8)
    with Ledger() as ledger:
        found.loss(found.model(*inputs), target).backward()
        steps.step()
    return [op.call for op in ledger.done]


@pytest.mark.parametrize("name", plan_models.MODELS)
def test_every_operation_of_a_step_can_be_made_again(name: str) -> None:
    once = sorted(set(noted(name)))
    assert all(once)
    assert all(seconds is not None and seconds > 0 for seconds in replaying.seconds(once))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((torch.ones(3, 4).t(), torch.ones(3)), {}),
        ((torch.ones(1, 3).expand(4, 3), torch.ones(3)), {"alpha": float("inf")}),
        ((torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), 2), {}),
        ((torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.bfloat16)), {}),
    ],
)
def test_arguments_come_back_as_they_were(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    add = torch.ops.aten.add.Tensor
    operation, given, by_name = calls.rebuilt(calls.described(add, args, named))
    assert operation is add
    assert by_name == named
    for one, before in zip(given, args, strict=True):
        if isinstance(before, torch.Tensor):
            assert (one.shape, one.stride(), one.dtype) == (
                before.shape,
                before.stride(),
                before.dtype,
            )
        else:
            assert one == before


def test_what_has_no_words_is_not_made() -> None:
    sparse = torch.eye(3).to_sparse()
    assert calls.described(torch.ops.aten.add.Tensor, (sparse, sparse), {}) == ""
    assert replaying.seconds([""]) == [None]
