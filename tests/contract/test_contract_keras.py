"""The laws over the Keras cells, on both backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import contract_keras_names as names
import numpy as np
import pytest
from contract_cells import KERAS_TF, KERAS_TORCH, Kind, oracle
from contract_check import (
    assert_close,
    assert_equals_one_device,
    assert_identical,
    assert_raised,
    by_name,
    difference,
)
from contract_job import Job
from contract_over import job_and_case, marks

from dream.strategies.spec import SPECS

KINDS: list[Kind] = ["keras_tf", "keras_torch"]
Oracle = Callable[[Kind], Job]
over = partial(job_and_case, KERAS_TF + KERAS_TORCH)


@pytest.fixture
def one(job: Job, run_oracle: Oracle) -> Job:
    return run_oracle(job.cell.kind)


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, marks=marks(oracle(kind), case))
        for kind in KINDS
        for case in (*names.PLAIN_TOO, *names.RIGHT_OR_REFUSED)
    ],
)
def test_single_is_plain_keras(run_oracle: Oracle, kind: Kind, case: str) -> None:
    job = run_oracle(kind)
    (plain,) = job.figures(case, "plain")
    (single,) = job.figures(case, "single")
    assert_identical([plain["parameters"], single["parameters"]])
    for name in {"epochs", "evaluate", "stopped"} & plain.keys():
        assert plain[name] == single[name], name
    if "predict" in plain:
        assert np.array_equal(plain["predict"], single["predict"])


@over(*names.EQUAL)
def test_equals_one_device(job: Job, one: Job, case: str) -> None:
    assert_equals_one_device(job, one, case)


@over(*names.WITH_OPTIMIZER)
def test_the_optimizers_own_state_is_that_of_one_device(job: Job, one: Job, case: str) -> None:
    assert_equals_one_device(job, one, case, key="optimizer")


@over(*names.WITH_EPOCHS)
def test_the_logs_are_global(job: Job, one: Job, case: str) -> None:
    """What callbacks and the history are told: the same on every rank, and one device's."""
    ranks = job.figures(case)
    (single,) = one.figures(case, "single")
    for key in {"epochs", "batches"} & single.keys():
        for rank in ranks:
            assert rank[key] == ranks[0][key]
        assert len(ranks[0][key]) == len(single[key])
        for ours, theirs in zip(ranks[0][key], single[key], strict=True):
            assert ours == pytest.approx(theirs, abs=3e-6), key
    if "history" in single:
        assert_equals_one_device_within(ranks, single, "history", 3e-6)


def assert_equals_one_device_within(
    ranks: list[Any], single: Any, key: str, tolerance: float
) -> None:
    for rank in ranks:
        assert_close(rank[key], single[key], tolerance)
    assert_identical([rank[key] for rank in ranks], key)


@over(*names.WITH_EVALUATE)
def test_evaluate_is_global(job: Job, one: Job, case: str) -> None:
    ranks = job.figures(case)
    (single,) = one.figures(case, "single")
    for rank in ranks:
        assert rank["evaluate"] == ranks[0]["evaluate"]
        assert rank["evaluate"] == pytest.approx(single["evaluate"], abs=3e-6)


@over(*names.WITH_PREDICT)
def test_predict_gives_every_sample_in_order_on_every_rank(job: Job, one: Job, case: str) -> None:
    ranks = job.figures(case)
    (single,) = one.figures(case, "single")
    assert_identical([{"predict": rank["predict"]} for rank in ranks])
    for rank in ranks:
        assert_close({"predict": rank["predict"]}, {"predict": single["predict"]}, 5e-6)


@over("stopped_early")
def test_all_ranks_stop_at_the_same_epoch(job: Job, one: Job, case: str) -> None:
    (single,) = one.figures(case, "single")
    assert 0 < single["stopped"] < 11, "the case must stop early"
    for rank in job.figures(case):
        assert rank["stopped"] == single["stopped"]


@over(*names.RIGHT_OR_REFUSED)
def test_right_or_refused(job: Job, one: Job, case: str) -> None:
    """Where the framework itself cannot: an error of dream's, not another number."""
    refusals = [figures.get("refused") for figures in job.figures(case)]
    if any(refusals):
        for refusal in refusals:
            assert refusal is not None
            assert_raised(refusal, "DreamError", "Received")
    else:
        assert_equals_one_device(job, one, case)


@over("loop_written_by_hand")
def test_a_loop_by_hand_that_is_refused_is_told_of_train_step(job: Job, case: str) -> None:
    for figures in job.figures(case):
        if "refused" in figures:
            assert_raised(figures["refused"], "DreamError", "train_step")


@over("nothing_stays_patched")
def test_rank_0s_weights_start(job: Job, case: str) -> None:
    """That the ranks' own weights do differ is seen in the model that was made outside."""
    if job.cell.processes > 1:
        ranks = job.figures(case)
        assert difference(ranks[0]["begin"], ranks[1]["begin"]) > 1e-2


@over("batch_normalisation")
def test_moving_statistics_are_the_mean_over_the_replicas(job: Job, case: str) -> None:
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    inputs, replicas = ranks[0]["inputs"].astype(np.float64), job.cell.replicas
    shares = [inputs[replica::replicas] for replica in range(replicas)]
    mean = np.mean([share.mean(axis=0) for share in shares], axis=0)
    spread = np.mean([share.var(axis=0) for share in shares], axis=0)
    for rank in ranks:
        np.testing.assert_allclose(rank["once"][0], 0.01 * mean, atol=1e-6)
        np.testing.assert_allclose(rank["once"][1], 0.99 + 0.01 * spread, atol=1e-6)


@over("batch_normalisation")
def test_statistics_by_replica_are_spoken_of_in_one_line(job: Job, one: Job, case: str) -> None:
    first, *others = (figures["lines"] for figures in job.figures(case))
    assert sum("one device" in line for line in first) == 1, first
    assert all(lines == [] for lines in others)
    (single,) = one.figures(case, "single")
    assert single["lines"] == []


@over("attention_adamw")
def test_attention_under_adam_is_within_its_own_noise(job: Job, one: Job, case: str) -> None:
    ranks = [figures["parameters"] for figures in job.figures(case)]
    assert_identical(ranks)
    (plain,) = one.figures(case, "plain")
    (single,) = one.figures(case, "single")
    noise = by_name(plain["in_parts"][job.cell.replicas], plain["parameters"])
    found = by_name(ranks[0], single["parameters"])
    bounds = {name: max(1e-6, 3 * noise[name]) for name in noise}
    assert all(found[name] <= bounds[name] for name in found), (found, bounds)


@pytest.mark.parametrize("copy", ["deepcopy", "pickle", "clone"])
@over("copies")
def test_copies_are_equal_and_plain(job: Job, one: Job, copy: str, case: str) -> None:
    """Rank 0 alone trains each copy; a copy that still waited for the others would hang."""
    assert_equals_one_device(job, one, case, key=copy)
    ranks = job.figures(case)
    (single,) = one.figures(case, "single")
    assert_close(ranks[0][copy], ranks[0]["parameters"], 0.0)
    assert_close(ranks[0]["moved"][copy], single["moved"][copy], 2e-6)


@over("nothing_stays_patched")
def test_nothing_stays_patched(job: Job, one: Job, case: str) -> None:
    (single,) = one.figures(case, "single")
    for figures in (single, *job.figures(case)):
        assert figures["after"] == []
        assert figures["after_error"] == []
        assert "KeyError" in figures["error"]["types"]
        assert figures["inside"] == "Sequential"


@over("nothing_stays_patched")
def test_what_is_made_after_the_block_is_plain(job: Job, one: Job, case: str) -> None:
    ranks = job.figures(case)
    (single,) = one.figures(case, "single")
    assert_close(ranks[0]["outside"], single["outside"], 0.0)
    if job.cell.processes > 1:
        assert difference(ranks[0]["outside"], ranks[1]["outside"]) > 1e-2


@over("files_are_rank_0s")
def test_files_are_each_ranks_own_and_callbacks_write_on_rank_0(job: Job, case: str) -> None:
    ranks = job.figures(case)
    assert ranks[0]["names"] == [
        "best0.keras", "function0.keras", "log0.csv", "only0.weights.h5", "whole0.keras"
    ]  # fmt: skip
    for number, rank in enumerate(ranks[1:], start=1):
        own = [f"function{number}.keras", f"only{number}.weights.h5", f"whole{number}.keras"]
        assert rank["names"] == own
    assert ranks[0]["left"] == []
    for name, loaded in ranks[0]["loaded"].items():
        assert_close(loaded, ranks[0]["parameters"], 0.0), name


@over(*names.STEPS)
def test_the_steps_value_is_the_global_mean_loss(job: Job, one: Job, case: str) -> None:
    """Also where one rank alone reads it at once."""
    ranks = job.figures(case)
    (single,) = one.figures(case, "single")
    for rank in ranks:
        assert rank["values"] == ranks[0]["values"]
        assert rank["values"] == pytest.approx(single["values"], abs=2e-6)


@over("evaluate")
def test_strategy_evaluate_is_keras_evaluate(job: Job, one: Job, case: str) -> None:
    ranks = job.figures(case)
    (single,) = one.figures(case, "single")
    for rank in ranks:
        assert rank["found"]["right"] == pytest.approx(rank["keras"]["accuracy"], abs=1e-6)
        assert rank["found"] == pytest.approx(single["found"], abs=1e-6)


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
@over("communicator")
def test_the_communicator_is_numpy(job: Job, kind: str, case: str) -> None:
    ranks = [figures[kind] for figures in job.figures(case)]
    base = [np.arange(6.0).reshape(2, 3) + 10.0 * rank for rank in range(len(ranks))]
    expected: dict[str, Any] = {
        "sum": np.sum(base, axis=0),
        "min": base[0],
        "max": base[-1],
        "mean": np.mean(base, axis=0),
        "list": np.sum(base, axis=0),
        "broadcast": base[0],
        "broadcast_last": base[-1],
    }
    for rank in ranks:
        assert rank["unchanged"]
        assert all(rank["kinds"])
        for name, value in expected.items():
            for got, dtype in zip(rank[name], (np.float32, np.int64), strict=False):
                assert got.dtype == dtype, name
                np.testing.assert_allclose(got, value, rtol=1e-6, err_msg=name)


@over("communicator")
def test_the_communicator_knows_its_place(job: Job, case: str) -> None:
    for index, rank in enumerate(job.figures(case)):
        assert rank["ranks"] == (index, job.cell.processes)
        assert rank["topology"] == [index, job.cell.processes, job.cell.replicas]
        assert_raised(rank["mean_of_integers"], "Unsupported", "int32")
        assert_raised(rank["unknown_op"], "ConfigurationError", "median", "sum")


@over("refusals")
def test_bad_input_gets_a_clear_error(job: Job, case: str) -> None:
    cell = job.cell
    for rank in job.figures(case):
        replicas = cell.replicas
        assert_raised(rank["small"], "ConfigurationError", f"batch_size={replicas - 1}")
        assert_raised(rank["small"], "ConfigurationError", f"replicas={replicas}")
        assert_raised(rank["unreduced"], "Unsupported", "None", "sum_over_batch_size")
        assert_raised(rank["nested"], "ConfigurationError", "nested", cell.strategy)
        assert rank["current"]
        assert_raised(rank["strategy"], "ConfigurationError", "'mirored'", "'mirrored'")
        known = [option.name for option in SPECS[cell.strategy].options]
        near = ["'bucket_mb'"] if "bucket_mb" in known else []
        assert_raised(rank["option"], "ConfigurationError", "'bucket_md'", *near)
        if cell.framework == "tensorflow" and near:
            assert_raised(rank["foreign"], "Unsupported", "bucket_mb", "torch")
        if cell.processes > 1:
            assert_raised(rank["single"], "ConfigurationError", "world size", "-n 1")


@over("refusals")
def test_a_model_made_outside_works_prepared_or_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        refusal = rank["made_before"]
        assert refusal["types"] == [] or "DreamError" in refusal["types"], refusal


@over("ranks_that_built_different_models")
def test_ranks_that_built_different_models_are_told(job: Job, case: str) -> None:
    if job.cell.processes == 1:
        pytest.skip(f"{job.cell}: one process builds one model")
    for rank in job.figures(case):
        last = job.cell.processes - 1
        assert_raised(rank, "Desynchronized", "odd", "rank 0", f"rank {last}")
