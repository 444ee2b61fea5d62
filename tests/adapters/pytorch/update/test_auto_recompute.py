"""`recompute="auto"`: the same numbers, less memory, and what cannot be is said."""

from __future__ import annotations

import gc
import re
from functools import cache
from typing import Any
from weakref import ref

import pytest
import torch
from auto_scripts import Recurrent, Remembering, Transformer, compared, kept, on_a_gpu, trained
from torch import nn

import dream

pytestmark = pytest.mark.slow
of_the_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="asks what is so without a GPU")
SAID = re.compile(r"recompute: (\d+ of \d+ \w+, )+activations .+ to .+, about \d+% more time")


@cache
def whole_transformer() -> dict[str, Any]:
    return trained("single", Transformer, False)[0]


@pytest.mark.parametrize("budget", [0.8, pytest.param(0.5, marks=pytest.mark.exhaustive), 0.35])
def test_numbers_are_those_of_keeping_all(budget: float) -> None:
    whole = whole_transformer()
    again, lines = trained("single", Transformer, "auto", memory_budget=budget)
    assert all((whole[name] == again[name]).all() for name in whole)
    (line,) = lines
    assert SAID.fullmatch(line)


@pytest.mark.parametrize(
    ("strategy", "options", "kinds"),
    [
        ("mirrored", {}, ["Transformer", "Recurrent"]),
        pytest.param("mirrored", {"accumulate": 2}, ["Transformer"], marks=pytest.mark.exhaustive),
        ("sharded", {"zero": 3}, ["Transformer"]),
        pytest.param("sharded", {"zero": 3}, ["Recurrent"], marks=pytest.mark.exhaustive),
        pytest.param("sharded", {"zero": 1}, ["Transformer"], marks=pytest.mark.exhaustive),
        ("model_parallel", {"split": "tensor"}, ["Transformer"]),
    ],
)
def test_ranks_choose_alike(strategy: str, options: dict[str, Any], kinds: list[str]) -> None:
    ranks = dream.launch(
        compared, strategy, kinds, options, n=2, framework="torch", timeout=300,
        env={"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    for index in range(len(kinds)):
        (off, lines), (other, others) = (rank[index] for rank in ranks)
        assert off == other == 0.0
        assert lines == others
        assert SAID.fullmatch(lines[0])


@of_the_cpu
def test_copies_in_one_process() -> None:
    ((off, lines),) = compared("data_parallel", ["Transformer"], {"devices": 2})
    assert off == 0.0
    assert SAID.fullmatch(lines[0])


def test_lstms_and_convolutions() -> None:
    ((off, lines),) = compared("single", ["Recurrent"], {})
    assert off == 0.0
    assert SAID.fullmatch(lines[0])


def test_memory_falls_to_the_budget() -> None:
    whole, most = kept(False)
    for share in (0.7, 0.4):
        less, peak = kept("auto", share)
        assert less <= share * whole
        assert peak <= share * most * 1.25  # backward makes some of its own


def test_a_block_that_keeps_what_it_computed_is_not_computed_again() -> None:
    with pytest.raises(dream.ConfigurationError, match="do not fit"):
        trained("single", Remembering, "auto", memory_budget=0.8)


def test_a_budget_that_is_too_small_says_by_how_much() -> None:
    with pytest.raises(dream.ConfigurationError, match=r"memory_budget='1KB'.* KB too much"):
        trained("single", Transformer, "auto", memory_budget="1KB")


def test_all_of_it_fits() -> None:
    _, lines = trained("single", Recurrent, "auto", memory_budget="1GB")
    assert "nothing, activations of" in lines[0]


def test_a_tensor_written_into_before_backward_is_an_error_as_in_torch() -> None:
    with dream.strategy("single", framework="torch", recompute="auto", memory_budget=1.0):
        model = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
        output = model(torch.ones(1, 2))
        output.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


@of_the_cpu
@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("single", {"recompute": "auto"}, "On the CPU the memory limit"),
        ("single", {"recompute": True, "memory_budget": 0.5}, "Pass recompute='auto'"),
        ("single", {"recompute": "auto", "memory_budget": "much"}, "no size.*'much'"),
        ("single", {"recompute": "auto", "memory_budget": True}, "wrong type"),
        ("single", {"recompute": "auto", "memory_budget": -1}, "too small"),
        ("single", {"recompute": "automatic"}, "no such value"),
        (
            "single",
            {"recompute": "auto", "memory_budget": 0.5, "accumulate": "auto"},
            "cannot both follow memory",
        ),
        (
            "model_parallel",
            {"split": "layers", "recompute": "auto", "memory_budget": 0.5, "devices": 2},
            "cannot choose what to recompute",
        ),
    ],
)
def test_what_is_refused(strategy: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(dream.DreamError, match=message):
        dream.strategy(strategy, framework="torch", **options).__enter__()


def test_a_compiled_model_is_refused() -> None:
    with dream.strategy("single", framework="torch", recompute="auto", memory_budget=0.5):
        model = nn.Sequential(nn.Linear(2, 2))
        model.compile(backend="eager")
        with pytest.raises(dream.Unsupported, match=r"torch\.compile"):
            model(torch.ones(1, 2))


def test_a_first_batch_without_a_backward_pass_is_let_go() -> None:
    class Exponential(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = super().forward(x).exp()
            outputs.append(ref(made))
            return made

    outputs: list[ref[torch.Tensor]] = []
    with dream.strategy("single", framework="torch", recompute="auto", memory_budget=1.0):
        model = nn.Sequential(Exponential(2, 2))
        model(torch.ones(1, 2))
        gc.collect()
    assert [each() for each in outputs] == [None]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_a_gpu_holds_less_and_by_default_all_that_fits() -> None:
    whole, fits = on_a_gpu(False), on_a_gpu("auto")
    less = on_a_gpu("auto", memory_budget=0.4)
    assert fits["most"] <= 1.05 * whole["most"]
    # beside the budget, a step has a block's values while that is computed again, and the weights
    assert less["most"] <= 0.8 * whole["most"], (less["most"], fits["most"], whole["most"])
    for found in (fits, less):
        for ours, theirs in zip(found["parameters"], whole["parameters"], strict=True):
            assert abs(ours - theirs).max() <= 1e-6
