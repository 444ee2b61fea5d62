"""On GPUs. What a machine without one can tell is told as if tensors lay on one; the rest is run
where there is one, two ranks sharing it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch_gpu

import dream
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.randomness import current

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
WAYS: dict[str, tuple[str, bool, bool, dict[str, Any]]] = {
    "mirrored": ("mirrored", False, True, {}),
    "mirrored, train_step": ("mirrored", True, True, {}),
    "sharded": ("sharded", True, True, {}),
    "sharded, zero=1": ("sharded", True, True, {"zero": 1}),
    "sharded, cpu_offload": ("sharded", True, True, {"cpu_offload": True}),
    "tensor": ("model_parallel", True, False, {"split": "tensor"}),
    "pipeline": ("model_parallel", True, False, {"split": "pipeline"}),
}


def launched(function: Any, *given: Any, ranks: int = 2, **env: str) -> list[Any]:
    return dream.launch(function, *given, n=ranks, framework="torch", timeout=240, env=env)


@cache
def plain() -> dict[str, Any]:
    return dict(launched(torch_gpu.alone, ranks=1)[0])


def test_losses_are_weighed_where_reading_them_would_wait() -> None:
    for rank in launched(torch_gpu.as_if_away):
        assert rank.pop("default device") == ["meta"] * 4  # was ignored, by what dream stands for
        for name, found in rank.items():
            if name != "looked up":  # in an order that each rank has of its own rows: it is said
                assert found == pytest.approx(plain()[name], rel=0, abs=2e-5), name


def test_what_ranks_tell_each_other_is_heard_whatever_comes_next() -> None:
    for found in launched(torch_gpu.heard_late):
        assert found["divisors later"] == found["divisors at once"]
        assert "different parts of a model" in found["last step"]  # there is no step after


def test_gradients_that_are_no_numbers_stay_so() -> None:
    assert launched(torch_gpu.overflows) == [False, False]


def test_a_batch_that_the_script_has_moved_itself_is_left_as_it_is() -> None:
    device, x, lengths = torch.device("meta"), torch.ones(2, 3), torch.tensor([3, 1])
    moved = devices.beside(torch.nn.Linear(3, 1), (x, lengths), device)
    assert [each.device for each in moved] == [device] * 2
    mixed = (x.to(device), lengths)  # which torch wants on the CPU, wherever sequences are
    assert devices.beside(torch.nn.Linear(3, 1), mixed, device) is mixed


def test_a_count_beside_a_loss_leaves_its_dtype() -> None:
    assert torch_gpu.wide_count() == "torch.float32"


def test_split_layers_are_stepped_whatever_torchs_default_is() -> None:
    (expected,) = launched(torch_gpu.at_once, ranks=1)
    for found in launched(torch_gpu.tensor_at_once):
        assert found == pytest.approx(expected, rel=0, abs=2e-5)


@pytest.mark.parametrize("copies", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_ranks_of_one_gpu_go_through_the_cpu(copies: bool) -> None:
    for rank, found in enumerate(launched(torch_gpu.through_the_cpu, copies)):
        assert found["sum"] == [3.0] * 3
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]
        assert found["received"] == [1.0 - rank] * 3
        assert found["moved"] == [2.0 * rank, 2 * rank + 1, 2 * rank + 10, 2 * rank + 11]
        assert max(found["sharded"], found["ddp"], found["cut"]) <= 1e-6


@on_a_gpu
@pytest.mark.parametrize("way", WAYS)
def test_two_ranks_of_a_gpu_train_as_one(way: str) -> None:
    norm = WAYS[way][2]
    (expected,) = launched(torch_gpu.on_the_gpu, "", False, norm, {}, ranks=1)
    for found in launched(torch_gpu.on_the_gpu, *WAYS[way]):
        assert found == pytest.approx(expected, rel=0, abs=2e-5)


def test_the_generator_of_a_gpu_goes_on_from_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trial draws is put back. Another generator of torch's stands in for a GPU's."""
    own = torch.Generator().manual_seed(3)
    for name, function in {
        "is_available": lambda: True, "is_initialized": lambda: True,
        "get_rng_state": own.get_state, "set_rng_state": own.set_state,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, function)
    kept = current.packed()
    drawn = torch.rand(3), torch.rand(3, generator=own)
    assert current.packed() != kept
    current.go_on_from(kept)
    assert torch.equal(torch.rand(3), drawn[0])
    assert torch.equal(torch.rand(3, generator=own), drawn[1])
    current.go_on_from(kept[: torch.get_rng_state().numel()])  # where there was no GPU
    assert torch.equal(torch.rand(3), drawn[0])


@on_a_gpu
def test_a_keras_model_draws_from_the_gpus_generator() -> None:
    (expected,) = launched(torch_gpu.keras_with_dropout, False, ranks=1, KERAS_BACKEND="torch")
    for found in launched(torch_gpu.keras_with_dropout, True, KERAS_BACKEND="torch"):
        assert found == pytest.approx(expected, rel=0, abs=2e-5)


@on_a_gpu
@pytest.mark.parametrize("by_step", [True, False])
def test_a_step_never_waits_for_the_gpu(by_step: bool) -> None:
    assert launched(torch_gpu.waits, by_step, ranks=1) == [[]]


@on_a_gpu
def test_models_of_before_leave_a_gpu() -> None:
    """One may stay, which the script names until it has made the next."""
    (more,) = launched(torch_gpu.held_by_folds, ranks=1)
    assert more < 2.1
