"""The laws over the torch cells: what one device computes, every strategy computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import contract_torch_names as names
import numpy as np
import pytest
from contract_cells import TORCH
from contract_check import (
    assert_close,
    assert_equals_one_device,
    assert_identical,
    assert_raised,
    by_name,
    difference,
    global_order,
    of_each_copy,
)
from contract_job import Job
from contract_over import job_and_case

from dream.data.partition import epoch_order

over = partial(job_and_case, TORCH)
ALSO = ("shuffled_order", "files_are_rank_0s")


@pytest.fixture(scope="session")
def oracle(run_oracle: Callable[[str], Job]) -> Job:
    return run_oracle("torch")


@pytest.mark.parametrize("case", names.PLAIN_TOO)
def test_single_is_plain_torch(oracle: Job, case: str) -> None:
    (plain,) = oracle.figures(case, "plain")
    (single,) = oracle.figures(case, "single")
    assert_identical([plain["parameters"], single["parameters"]])


@over(*names.PLAIN_TOO, *names.WITH_DREAM)
def test_equals_one_device(job: Job, oracle: Job, case: str) -> None:
    assert_equals_one_device(job, oracle, case)


@over(*names.RIGHT_OR_REFUSED)
def test_right_or_refused(job: Job, oracle: Job, case: str) -> None:
    """Less usual ways to a gradient: a wrong number without a word is what must not be."""
    refusals = [figures.get("refused", "") for figures in job.figures(case)]
    if not all(refusals):
        assert_equals_one_device(job, oracle, case)


@over("even_momentum", "uneven_momentum", "drop_last")
def test_the_batch_size_is_the_global_one(job: Job, oracle: Job, case: str) -> None:
    ranks = of_each_copy(job, job.figures(case))
    (one,) = oracle.figures(case, "plain")
    sizes = [sum(step) for step in zip(*(rank["sizes"] for rank in ranks), strict=True)]
    assert sizes == one["sizes"]
    for step in zip(*(rank["sizes"] for rank in ranks), strict=True):
        assert max(step) - min(step) <= 1
    assert all(rank["rates"] == one["rates"] for rank in ranks)


@over("sizes_of_a_rank_without_sample")
def test_a_rank_without_sample_gets_an_empty_batch(job: Job, oracle: Job, case: str) -> None:
    ranks = of_each_copy(job, job.figures(case))
    (one,) = oracle.figures(case, "plain")
    for epoch in range(2):
        assert global_order([rank["seen"][epoch] for rank in ranks]) == one["seen"][epoch]
    assert all(rank["length"] == one["length"] == 4 for rank in ranks)
    assert [rank["shapes"][-1] for rank in ranks] == [
        ((1 if index == 0 else 0, 8), (1 if index == 0 else 0,)) for index in range(len(ranks))
    ]


@over("shuffled_order")
def test_every_sample_once_an_epoch_in_one_order(job: Job, oracle: Job, case: str) -> None:
    ranks = of_each_copy(job, job.figures(case))
    (plain,) = oracle.figures(case, "plain")
    (single,) = oracle.figures(case, "single")
    orders = [global_order([rank["seen"][epoch] for rank in ranks]) for epoch in range(3)]
    assert orders == plain["seen"]
    assert global_order([rank["other"][0] for rank in ranks]) == single["other"][0]
    assert global_order([rank["again"][0] for rank in ranks]) == single["again"][0]


def test_the_order_is_the_plain_scripts_and_a_seed_fixes_it(oracle: Job) -> None:
    (plain,) = oracle.figures("shuffled_order", "plain")
    (one,) = oracle.figures("shuffled_order", "single")
    assert one["seen"] == plain["seen"]
    flat = [[*chain(*epoch)] for epoch in [*one["seen"], *one["again"]]]
    assert all(sorted(order) == list(range(61)) for order in flat)
    assert len({tuple(order) for order in flat}) == len(flat)
    other = [*chain(*one["other"][0])]
    assert other == epoch_order(61, seed=7, epoch=0, shuffle=True).tolist()


@over("samplers_of_the_user")
def test_a_users_sampler_is_honoured(job: Job, oracle: Job, case: str) -> None:
    """Rank 0's draws, dealt out; so they are those of plain torch from rank 0's generators."""
    ranks = of_each_copy(job, job.figures(case))
    (plain,) = oracle.figures(case, "plain")
    (single,) = oracle.figures(case, "single")
    assert single["seen"] == plain["seen"]
    for name, epochs in plain["seen"].items():
        for epoch, batches in enumerate(epochs):
            assert global_order([rank["seen"][name][epoch] for rank in ranks]) == batches, name


@over("nothing_stays_patched")
def test_a_seed_by_rank_makes_other_weights(job: Job, case: str) -> None:
    """In a model that is made outside. Inside rank 0's start: rank_dependent_initial_weights."""
    ranks = job.figures(case)
    for other in ranks[1:]:
        assert difference(ranks[0]["begin"], other["begin"]) > 1e-2


@over("batch_normalisation")
def test_running_statistics_are_the_mean_over_ranks(job: Job, case: str) -> None:
    ranks = job.figures(case)
    assert_identical([rank["parameters"] for rank in ranks])
    inputs, copies = ranks[0]["inputs"].reshape(12, 2, 4), job.cell.replicas
    shares = [inputs[copy::copies] for copy in range(copies)]
    if job.cell.processes < copies:  # devices of one process get runs
        shares = np.split(inputs, copies)
    mean = np.mean([share.mean(axis=(0, 2)) for share in shares], axis=0)
    spread = np.mean([share.var(axis=(0, 2), ddof=1) for share in shares], axis=0)
    for rank in ranks:
        assert np.allclose(rank["once"]["0.running_mean"], 0.1 * mean, atol=1e-6)
        assert np.allclose(rank["once"]["0.running_var"], 0.9 + 0.1 * spread, atol=1e-6)


@over("batch_normalisation")
def test_batchnorm_is_spoken_of_in_one_line(job: Job, oracle: Job, case: str) -> None:
    first, *others = (figures["lines"] for figures in job.figures(case))
    assert len(first) == (1 if job.cell.replicas > 1 else 0)
    assert all(lines == [] for lines in others)
    (single,) = oracle.figures(case, "single")
    assert single["lines"] == []


@over("attention_adamw")
def test_attention_under_adam_is_within_its_own_noise(job: Job, oracle: Job, case: str) -> None:
    ranks = [figures["parameters"] for figures in job.figures(case)]
    assert_identical(ranks)
    (plain,) = oracle.figures(case, "plain")
    (single,) = oracle.figures(case, "single")
    noise = by_name(plain["in_parts"][max(2, job.cell.replicas)], plain["parameters"])
    found = by_name(ranks[0], single["parameters"])
    bounds = {name: max(1e-6, 3 * noise[name]) for name in noise}
    assert all(found[name] <= bounds[name] for name in found), (found, bounds)


@over("evaluation_loop_by_hand")
def test_an_evaluation_loop_sees_every_sample_on_every_rank(
    job: Job, oracle: Job, case: str
) -> None:
    (single,) = oracle.figures(case, "single")
    for rank in job.figures(case):
        for ours, theirs in zip(rank["results"], single["results"], strict=True):
            assert ours[0] == theirs[0] == list(range(23))
            assert ours[1] == theirs[1]
            assert ours[2] == pytest.approx(theirs[2], abs=1e-4)


@over("evaluate")
def test_evaluate_is_global_and_shared(job: Job, oracle: Job, case: str) -> None:
    ranks = job.figures(case)
    (single,) = oracle.figures(case, "single")
    for way in ("dealt", "by_hand"):
        for rank in ranks:
            assert rank[way] == ranks[0][way]
        assert ranks[0][way] == pytest.approx(single[way], abs=1e-6)
    assert sum(rank["work"] for rank in of_each_copy(job, ranks)) == 49
    assert max(rank["work"] for rank in ranks) < 49 or 1 in (len(ranks), job.cell.replicas)
    assert all(rank["training"] for rank in ranks)


@pytest.mark.parametrize("key", ["average", "pickled", "before"])
@over("moving_average_and_pickle")
def test_copies_are_equal_and_plain(job: Job, oracle: Job, key: str, case: str) -> None:
    ranks = job.figures(case)
    (single,) = oracle.figures(case, "single")
    if key != "before":
        assert_equals_one_device(job, oracle, case, key=key)
    for rank in ranks:
        assert rank["types"] == single["types"]
        assert difference(dict(enumerate(rank["state"])), dict(enumerate(single["state"]))) < 1e-5
    assert_close(ranks[0]["moved"][key], single["moved"][key], 2e-6)


@over("nothing_stays_patched")
def test_nothing_stays_patched(job: Job, oracle: Job, case: str) -> None:
    ranks = job.figures(case)
    for rank in ranks:
        assert rank["after"] == []
        assert rank["after_error"] == []
        assert "KeyError" in rank["error"]["types"]
        assert "Module.__init__" in rank["inside"]
        assert "DataLoader.__init__" in rank["inside"]
    (single,) = oracle.figures(case, "single")
    assert single["after"] == single["after_error"] == []


@over("nothing_stays_patched")
def test_what_is_made_after_the_block_is_plain(job: Job, oracle: Job, case: str) -> None:
    ranks = job.figures(case)
    (single,) = oracle.figures(case, "single")
    assert all(rank["sizes"] == [16, 16, 16, 13] for rank in ranks)
    assert_close(ranks[0]["outside"], single["outside"], 0.0)
    for other in ranks[1:]:
        assert difference(ranks[0]["outside"], other["outside"]) > 1e-2


@over("files_are_rank_0s")
def test_a_file_that_all_ranks_save_is_rank_0s_and_others_their_own(job: Job, case: str) -> None:
    ranks = job.figures(case)
    assert [rank["shared"] for rank in ranks] == [0] * len(ranks)
    for rank in ranks:
        assert_close(rank["loaded"], rank["parameters"], 0.0)
    assert_close(ranks[0]["whole"], ranks[0]["parameters"], 0.0)
    for rank in ranks:
        assert_close(rank["buffer"], rank["parameters"], 0.0)


@over("files_are_rank_0s")
def test_a_save_that_fails_leaves_the_file_as_it_was(job: Job, case: str) -> None:
    first, *_ = ranks = job.figures(case)
    assert "RuntimeError" in first["failed"]["types"]
    assert first["left"] == []
    assert_close(first["loaded"], ranks[0]["parameters"], 0.0)


def test_a_save_that_fails_under_single_too(oracle: Job) -> None:
    (single,) = oracle.figures("files_are_rank_0s", "single")
    assert "RuntimeError" in single["failed"]["types"]
    assert_close(single["loaded"], single["parameters"], 0.0)


@over(*names.STEPS)
def test_the_steps_value_is_the_global_mean_loss(job: Job, oracle: Job, case: str) -> None:
    """Also where one rank alone reads it at once."""
    ranks = job.figures(case)
    (single,) = oracle.figures(case, "single")
    for rank in ranks:
        assert rank["values"] == ranks[0]["values"]
        assert rank["values"] == pytest.approx(single["values"], abs=2e-6)
        assert rank.get("shapes", {()}) == {()}


@pytest.mark.parametrize("way", ["called", "prepared"])
@over("dropout_masks")
def test_dropout_draws_one_devices_masks(job: Job, oracle: Job, way: str, case: str) -> None:
    """A rank's are those of its samples, and all generators stay in step."""
    ranks = job.figures(case)
    (plain,) = oracle.figures(case, "plain")
    (single,) = oracle.figures(case, "single")
    assert single[way] == plain[way]
    for rank in ranks:
        assert rank[f"{way}_others"] == plain[f"{way}_others"]
    assert global_order([rank[way] for rank in of_each_copy(job, ranks)]) == plain[way]


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
    dtypes = [np.float32, np.float64, np.int64]
    for rank in ranks:
        assert rank["unchanged"]
        assert rank["point"].shape == ()
        assert rank["point"] == sum(range(len(ranks)))
        assert all(rank["kinds"])
        for name, value in expected.items():
            for got, dtype in zip(rank[name], dtypes, strict=False):
                assert got.dtype == dtype, name
                np.testing.assert_allclose(got, value, rtol=1e-6, err_msg=name)


@over("communicator")
def test_the_communicator_knows_its_place(job: Job, case: str) -> None:
    ranks = job.figures(case)
    for index, rank in enumerate(ranks):
        assert rank["ranks"] == (index, len(ranks))
        assert rank["topology"] == [index, len(ranks), job.cell.replicas]


@over("communicator")
def test_the_barrier_lets_nobody_through_early(job: Job, case: str) -> None:
    times = [figures["barrier"] for figures in job.figures(case)]
    assert min(after for _, after in times) >= max(before for before, _ in times)


@over("communicator")
def test_the_communicator_refuses_what_means_nothing(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["mean_of_integers"], "Unsupported", "Received", "int64")
        assert_raised(rank["unknown_op"], "ConfigurationError", "median", "sum")


@over("distributed_sampler")
def test_distributed_sampler_deals_every_sample_once(job: Job, case: str) -> None:
    """Its own would repeat samples, 61 of them on 2 or 3 ranks."""
    ranks = [rank["seen"] for rank in job.figures(case)]
    assert all(len(seen) == len({*seen}) for seen in ranks)
    assert {index for seen in ranks for index in seen} == {*range(61)}
    dealt = {tuple(sorted(seen)) for seen in ranks}
    assert sum(map(len, dealt)) == 61


@over("batch_smaller_than_the_replicas")
def test_a_batch_smaller_than_the_replicas_is_refused(job: Job, case: str) -> None:
    for refusal in job.figures(case):
        assert_raised(
            refusal,
            "ConfigurationError",
            f"batch_size={job.cell.replicas - 1}",
            f"replicas={job.cell.replicas}",
        )


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("name", ("bias_x", "bias_y")),
        ("shape", ("tail", "[5]", "[4]")),
        ("dtype", ("tail", "float64", "float32")),
        ("number", ("more.weight",)),
        ("called", ("tail", "[5]", "[4]")),
    ],
)
@over("ranks_that_built_different_models")
def test_ranks_that_built_different_models_are_told(
    job: Job, way: str, words: tuple[str, ...], case: str
) -> None:
    for rank in job.figures(case):
        last = job.cell.processes - 1
        assert_raised(rank[way], "Desynchronized", *words, "rank 0", f"rank {last}")


@over("a_part_called_alone")
def test_a_part_called_alone_is_refused(job: Job, case: str) -> None:
    for refusal in job.figures(case):
        assert_raised(refusal, "ConfigurationError", "Received", "part of the model")


@over("a_model_made_outside")
def test_a_model_made_outside_is_taken_or_refused(job: Job, case: str) -> None:
    ranks = job.figures(case)
    if any(rank["types"] for rank in ranks):
        for rank in ranks:
            assert_raised(rank, "DreamError", "Received", "block")
    else:
        assert_identical([rank["parameters"] for rank in ranks])


@over("nested_blocks")
def test_nested_blocks_are_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank, "ConfigurationError", "nested", job.cell.strategy)
        assert rank["current"]
        assert rank["none"]


@over("words_that_are_not_known")
def test_unknown_words_are_told_with_the_nearest(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["strategy"], "ConfigurationError", "'mirored'", "'mirrored'", "single")
        assert_raised(rank["option"], "ConfigurationError", "'bucket_md'", "'bucket_mb'")
        assert_raised(rank["reduction"], "ConfigurationError", "'gluu'", "gloo")
        assert_raised(rank["framework"], "ConfigurationError", "'pytorch'", "torch")
        assert_raised(rank["type"], "ConfigurationError", "bucket_mb", "'large'")


@over("one_device_under_several_ranks")
def test_one_device_under_several_ranks_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["single"], "ConfigurationError", "world size", "-n 1")
        assert_raised(rank["data_parallel"], "DreamError", "data_parallel")


@over("single_samples_and_shapeless_parameters")
def test_what_cannot_be_dealt_or_reduced_is_refused(job: Job, case: str) -> None:
    for rank in job.figures(case):
        assert_raised(rank["single"], "Unsupported", "TensorDataset", "batch_size=None")
        assert_raised(rank["lazy"], "Unsupported", "first call of LazyLinear")


@over("a_model_that_cannot_take_an_empty_batch")
def test_a_model_that_takes_no_empty_batch_is_told_what_to_do(job: Job, case: str) -> None:
    last = job.cell.processes - 1
    kind, refusal = job.reached(case, last)
    assert kind == "figures"
    assert_raised(refusal, "ConfigurationError", "drop_last", "batch_size", "_Heads")


@over("a_model_that_cannot_take_an_empty_batch")
def test_nobody_waits_for_a_rank_that_failed(job: Job, case: str) -> None:
    kind, refusal = job.reached(case, 0)
    assert kind == "figures"
    assert refusal["types"], "rank 0 trained on without the last rank"
