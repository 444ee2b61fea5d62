"""Steps without values held against real ones, and operations of a step made again alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import plan_models
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from dream import ConfigurationError
from dream.adapters.pytorch.tools.planning import calls, sketching, trial
from dream.adapters.pytorch.tools.planning.example import example, make_optimizer
from dream.adapters.pytorch.tools.planning.ledger import Ledger
from dream.adapters.pytorch.update.recompute import recompute
from dream.tools.plan.asked import OPTIMIZERS, Optimizer, TrainingSpec
from dream.tools.plan.sketch import Candidate, Mesh, Sketch
from dream.tools.plan.traffic import bytes_of, memory


def noted(name: str) -> list[str]:
    """The calls of a step with values."""
    found = example(plan_models.MODELS[name]())
    steps = make_optimizer("adamw", found.model.parameters())
    *inputs, target = found.batch_of(8)
    with Ledger(describes=True) as ledger:
        found.loss(found.model(*inputs), target).backward()
        steps.step()
    return [op.call for op in ledger.done]


@pytest.mark.parametrize("name", plan_models.MODELS)
def test_every_operation_of_a_step_can_be_made_again(name: str) -> None:
    once = sorted(set(noted(name)))
    assert all(once)
    assert all(seconds is not None and seconds > 0 for seconds in calls.time_calls(once))


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
    assert calls.time_calls([""]) == [None]


def sketch(name: str, optimizer: Optimizer = "adamw", batch: int = 8, **options: Any) -> Sketch:
    precision = options.pop("precision", "float32")
    training = TrainingSpec(optimizer, precision, fused=False, **options)
    return sketching.make_sketcher(plan_models.MODELS[name], training).sketch(batch)


def stepping(name: str, optimizer: Optimizer, batch: int, *, again: bool = False) -> Any:
    """(model, optimizer, a step) with values. again: layers are computed again in backward."""
    found = example(plan_models.MODELS[name]())
    recompute(found.model, again, torch.is_grad_enabled)
    steps = make_optimizer(optimizer, found.model.parameters())
    *inputs, target = found.batch_of(batch)

    def step() -> None:
        steps.zero_grad(set_to_none=True)
        output = found.model(*inputs)
        value = found.loss(output, target)
        value.backward()
        steps.step()

    return found.model, steps, step


@pytest.mark.parametrize("name", plan_models.MODELS)
def test_what_backward_needs_is_what_autograd_saves(name: str) -> None:
    found = example(plan_models.MODELS[name]())
    *inputs, target = found.batch_of(8)
    known = {x.untyped_storage().data_ptr() for x in (*found.model.parameters(),
             *found.model.buffers(), *inputs, target)}  # fmt: skip
    held: dict[int, int] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        output = found.model(*inputs)
        value = found.loss(output, target)
    held |= {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in (output, value)}
    assert sketch(name).saved == sum(held.values())


@pytest.mark.parametrize("name", plan_models.MODELS)
def test_parameters_and_gradients_are_those_of_the_model(name: str) -> None:
    model, _, step = stepping(name, "sgd", 8)
    step()
    found = sketch(name)
    assert bytes_of(found.parameters) == sum(p.numel() * 4 for p in model.parameters())
    gradients = sum(p.grad.numel() * 4 for p in model.parameters())
    assert bytes_of(found.parameters, trained=True) == gradients
    assert found.buffers == sum(b.numel() * b.element_size() for b in model.buffers())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_state_is_that_of_a_real_optimizer(optimizer: Optimizer) -> None:
    _, steps, step = stepping("tokens", optimizer, 4)
    step()
    state = [x for each in steps.state.values() for x in each.values() if torch.is_tensor(x)]
    assert sketch("tokens", optimizer).state == sum(x.numel() * x.element_size() for x in state)


@pytest.mark.parametrize("name", plan_models.MODELS)
@pytest.mark.parametrize(("batch", "again"), [(8, False), (32, False), (32, True)])
def test_the_peak_is_what_the_allocator_gives(
    name: str, batch: int, again: bool, tmp_path: Path
) -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        _, _, step = stepping(name, "adamw", batch, again=again)
        for _ in range(2):
            with record_function(trial.STEP):
                step()
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    measured = trial.read_trace(tmp_path / "trace.json").peaks[-1]
    found = sketch(name, batch=batch, recompute=again)
    foretold = memory(Candidate("single", Mesh(1, 1)), found).peak
    kept = 3 * len(torch.get_rng_state()) if again else 0  # by three layers, for what they draw
    assert foretold == pytest.approx(measured, rel=0.10, abs=kept)


def test_layers_computed_again_keep_less_and_compute_more() -> None:
    whole, again = sketch("tokens", batch=32), sketch("tokens", batch=32, recompute=True)
    assert again.saved < 0.6 * whole.saved
    assert sum(op.flops for op in again.ops) > sum(op.flops for op in whole.ops)


def test_operations_are_counted_by_their_formula() -> None:
    ops = sketch("dense", batch=16).ops
    forward = [op.flops for op in ops if op.phase == "forward" and op.kind == "matmul"]
    assert forward == [2 * 16 * 20 * 64, 2 * 16 * 64 * 3]
    backward = [op.flops for op in ops if op.phase == "backward" and op.kind == "matmul"]
    assert sum(backward) == 2 * forward[1] + forward[0]  # the input's own gradient is not taken


def test_half_precision_halves_what_is_saved() -> None:
    whole, half = sketch("dense"), sketch("dense", precision="bfloat16")
    assert bytes_of(half.parameters) == bytes_of(whole.parameters) // 2
    assert half.saved < 0.6 * whole.saved


def test_a_model_may_be_larger_than_the_machine() -> None:
    training = TrainingSpec("adamw", "float32", fused=True)
    found = sketching.make_sketcher(plan_models.huge, training).sketch(2)
    assert bytes_of(found.parameters) == 10 * (10**12 + 10**6) * 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (plan_models.unfed, r"not enough. Received: Linear. Return \(model, batch\)"),
        (plan_models.looking, "something asked for one"),
        (lambda: 3, "not enough. Received: int"),
        (lambda: (torch.nn.Linear(2, 2), "words"), "no tensor in the batch"),
    ],
)
def test_what_cannot_be_sketched_says_why(build: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        sketching.make_sketcher(build, TrainingSpec("sgd", "float32", fused=False)).sketch(2)


def test_the_trace_of_a_run_is_read_as_torch_writes_it(tmp_path: Path) -> None:
    """Bytes to collectives: each with its dtype, in the step that gave least, where nothing was
    compared. Peaks: of every step, what came before among it."""
    events = [
        {"name": trial.STEP, "ts": 10.0, "dur": 5.0},
        {"name": trial.STEP, "ts": 2.0, "dur": 3.0},
        *(
            {"name": "[memory]", "ts": at, "args": {"Ev Idx": at, "Addr": place, "Bytes": size}}
            for at, place, size in ((1.0, 1, 100), (3.0, 2, 50), (4.0, 2, -50), (11.0, 3, 20))
        ),
        {"name": "gloo:all_reduce", "ts": 11.0,
         "args": {"Input type": ["float"], "Input Dims": [[3, 5]]}},
        {"name": "gloo:all_reduce", "ts": 12.0,
         "args": {"Input type": ["double"], "Input Dims": [[2]]}},
        {"name": "gloo:all_reduce", "ts": 9.0,
         "args": {"Input type": ["float"], "Input Dims": [[7]]}},
        {"name": "gloo:all_reduce", "ts": 3.0,
         "args": {"Input type": ["float"], "Input Dims": [[30]]}},
    ]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    seen = trial.read_trace(tmp_path / "trace.json")
    assert seen.given == {"all_reduce": 60 + 16}
    assert seen.peaks == [150, 120]
