"""How two runs are held against each other: no process is started here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from dream.tools import record
from dream.tools.placing import SINGLE, Placement
from dream.tools.record import Record, RecordRequest, Step
from dream.tools.verify import causes, report
from dream.tools.verify.causes import Ruling
from dream.tools.verify.judge import (
    Judged,
    Noise,
    ParameterGap,
    RunVerdict,
    Tolerance,
    by_name,
    judge,
    measure_noise,
)
from dream.tools.verify.runs import Broken, Ran, ScriptRunner

MIRRORED = Placement("mirrored", 2)
LOSSES = (1.5, 1.25, 1.0)


def ran(
    ranks: int = 2,
    *,
    losses: Sequence[float] = LOSSES,
    weights: Sequence[float] = (1.0, 1.0),
    shift: float = 0.0,
    rank_shift: float = 0.0,
    dtype: str = "float32",
    samples: Sequence[int | None] = (None, None),
) -> Ran:
    """A run whose parameters are moved by `shift`, and by `rank_shift` on the second rank."""
    records = tuple(
        Record(
            rank, ranks, ranks, "torch", dtype=dtype,
            steps=tuple(Step(loss, weights[rank], samples[rank]) for loss in losses),
        )
        for rank in range(ranks)
    )  # fmt: skip
    parameters = tuple(
        {"w": np.array([0.5, -2.0 + shift + rank * rank_shift], np.float32), "n": np.array(3)}
        for rank in range(ranks)
    )
    return Ran(records, parameters, 1.0)


def test_equal_within_rounding() -> None:
    judged = judge(MIRRORED, ran(shift=5e-7), ran(1))
    assert judged.verdict is RunVerdict.EQUAL
    assert judged.largest == pytest.approx(5e-7, rel=0.2)


def test_a_parameter_that_is_too_far_off_is_named_with_its_rank() -> None:
    judged = judge(MIRRORED, ran(rank_shift=1e-5), ran(1))
    assert judged.verdict is RunVerdict.DIFFERS
    assert judged.worst is not None
    assert (judged.worst.name, judged.worst.rank) == ("w", 1)
    assert judged.worst.allowed == pytest.approx(2e-6)  # of the largest value, which is 2


def test_the_first_step_whose_loss_is_off() -> None:
    judged = judge(MIRRORED, ran(losses=(1.5, 1.2502, 7.0)), ran(1))
    assert (judged.verdict, judged.first_step) == (RunVerdict.DIFFERS, 2)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_differs(wrong: float) -> None:
    assert judge(MIRRORED, ran(losses=(1.5, wrong, 1.0)), ran(1)).first_step == 2
    assert judge(MIRRORED, ran(shift=wrong), ran(1)).verdict is RunVerdict.DIFFERS


def test_training_that_diverges_alike_is_equal() -> None:
    lost = (1.5, float("inf"), float("nan"))
    assert judge(MIRRORED, ran(losses=lost), ran(1, losses=lost)).good


def test_other_numbers_of_steps_differ() -> None:
    judged = judge(MIRRORED, ran(losses=LOSSES[:2]), ran(1))
    assert judged.verdict is RunVerdict.DIFFERS
    assert "single 3, ranks 2, 2" in judged.reason


def test_ranks_are_alike_to_the_last_bit() -> None:
    judged = judge(MIRRORED, ran(rank_shift=3e-7), ran(1))
    assert judged.verdict is RunVerdict.RANKS_DIFFER
    assert "w differs between rank 0 and rank 1" in judged.reason


def test_the_place_that_was_asked_for() -> None:
    assert judge(Placement("mirrored", 3), ran(2), ran(1)).verdict is RunVerdict.WRONG_PLACE


def test_a_failure_is_a_failure() -> None:
    judged = judge(MIRRORED, Broken("Rank 1 failed"), ran(1))
    assert (judged.verdict, judged.reason) == (RunVerdict.FAILED, "Rank 1 failed")


def test_losses_are_weighed_and_what_weighs_nothing_may_be_nan() -> None:
    steps = (Step(1.0, 2.0), Step(float("nan"), 0.0))
    records = tuple(Record(rank, 2, 2, "torch", steps=(steps[rank],)) for rank in range(2))
    assert Ran(records, ({}, {}), 1.0).losses == [1.0]


def test_what_single_is_from_itself_three_times_is_no_difference() -> None:
    noise = Noise(2, [0.0, 0.0, 0.0], {"w": 2e-5})
    assert judge(MIRRORED, ran(shift=5e-5), ran(1), lambda: noise).good
    assert not judge(MIRRORED, ran(shift=7e-5), ran(1), lambda: noise).good
    (gap,) = judge(MIRRORED, ran(shift=5e-5), ran(1), lambda: noise).rounding
    assert gap.name == "w"


def test_a_parameter_that_is_made_of_rounding_is_twenty_times_as_far() -> None:
    """A bias before a BatchNorm under Adam: ranks' sums round more than single's own."""
    noise = Noise(2, [0.0, 0.0, 0.0], {"w": 8e-3}, how="rounded otherwise")
    judged = judge(MIRRORED, ran(shift=6e-2), ran(1), lambda: noise)
    assert judged.good
    (said,) = report.rounded(judged)
    assert said.endswith("by 8.0e-03 where rounded otherwise, and 20 times that is allowed.")
    assert not judge(MIRRORED, ran(shift=2e-1), ran(1), lambda: noise).good
    off = ran(shift=6e-2, losses=(LOSSES[0], *(loss + 1e-2 for loss in LOSSES[1:])))
    assert not judge(MIRRORED, off, ran(1), lambda: noise).good


def test_where_first_losses_are_equal_float64_is_named() -> None:
    noise = Noise(2, [0.0, 0.0, 0.0], {"w": 0.0})
    judged = judge(MIRRORED, ran(shift=1e-4), ran(1), lambda: noise)
    assert "float64" in " ".join(report.details(judged, ()))
    first = judge(MIRRORED, ran(losses=(1.6, 1.25, 1.0)), ran(1), lambda: noise)
    assert "float64" not in " ".join(report.details(first, ()))


def test_of_parameters_that_differ_by_rounding_the_one_that_differs_most_is_told() -> None:
    gaps = (ParameterGap("v", 0, 1e-5, 3e-5), ParameterGap("w", 0, 2e-5, 6e-5))
    judged = Judged(
        MIRRORED, RunVerdict.EQUAL, rounding=gaps, noise=Noise(2, [0.0], {"w": 2e-5, "v": 1e-5})
    )
    (said,) = report.rounded(judged)
    assert said.startswith("w differs by 2.0e-05, which is rounding: ")
    assert said.endswith(" The same holds for 1 more, by less.")


def test_a_model_of_whole_batches_is_as_far_from_itself_as_any_rounding_moves_it() -> None:
    """Its sums in another order may round as single's do."""
    moved = {(): ran(1, losses=(1.6, 1.25, 1.0)), ("reordered",): ran(1, shift=1e-7),
             ("nudged",): ran(1, shift=9e-6)}  # fmt: skip

    class Runs:
        def single(self, *changes: str, parts: int = 1) -> Ran:
            del parts
            return moved[changes]

    noise = measure_noise(cast(ScriptRunner, Runs()), ran(1), 2)
    assert noise.parameters["w"] == pytest.approx(9e-6, rel=0.1)
    assert judge(MIRRORED, ran(shift=8e-6), ran(1), lambda: noise).good


def test_a_first_loss_that_is_off_is_no_rounding() -> None:
    def asked() -> Noise:
        raise AssertionError

    assert judge(MIRRORED, ran(losses=(1.6, 1.25, 1.0)), ran(1), asked).first_step == 1


@pytest.mark.parametrize(
    ("dtype", "steps", "parameter"),
    [("float32", 20, 1e-6), ("float32", 1, 1e-6), ("float32", 40, 2e-6), ("float64", 20, 1.9e-15),
     ("float16", 20, 8.2e-3), ("bfloat16", 20, 6.6e-2)],
)  # fmt: skip
def test_the_tolerance_by_dtype_and_steps(dtype: str, steps: int, parameter: float) -> None:
    allowed = Tolerance(dtype, steps)
    assert allowed.parameter == pytest.approx(parameter, rel=0.02)
    assert f"{allowed.parameter:.1e}" in allowed.text


def test_whole_numbers_must_be_the_same() -> None:
    one, other = ran(1), ran(2)
    other = replace(other, parameters=tuple({**p, "n": np.array(4)} for p in other.parameters))
    assert judge(MIRRORED, other, one).verdict is RunVerdict.DIFFERS
    assert by_name({"a": np.ones(2)}, {"b": np.ones(2)}) == {"b": np.inf, "a": np.inf}


def test_batches_dealt_out_twice_are_seen() -> None:
    single = ran(1, samples=(20, None)).first
    assert "all ranks together on 10" in causes.slicing_seen(single, ran(samples=(5, 5)).records)
    assert not causes.slicing_seen(single, ran(samples=(10, 10)).records)
    whole = ran(samples=(20, 20)).records
    assert not causes.slicing_seen(single, whole)
    others = [replace(r, steps=[replace(s, glance=r.rank) for s in r.steps]) for r in whole]
    assert "not the same ones" in causes.slicing_seen(single, others)


@pytest.mark.parametrize(("single", "ours"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, np.inf)])
def test_a_loss_that_is_no_number_is_no_sum_over_samples(single: float, ours: float) -> None:
    held = judge(MIRRORED, ran(losses=(ours, 1.0)), ran(1, losses=(single, 1.0)))
    cause = causes.sum_of_samples(held, ran(losses=(ours, 1.0)), ran(1, losses=(single, 1.0)))
    assert cause.ruling is Ruling.OUT


def test_a_loss_that_is_no_number_is_told() -> None:
    assert "it diverges" not in report.caption(ran(1))
    assert "loss is nan in step 2: it diverges" in report.caption(ran(1, losses=(1.5, np.nan)))


def test_loaders_of_one_rank_alone_are_no_dealing_out() -> None:
    def having(*datasets: int) -> Record:
        return replace(ran(1).first, datasets=datasets)

    assert not causes.slicing_seen(having(30, 105), [having(30, 105), having(105)])
    assert not causes.slicing_seen(having(105, 30), [having(105, 30), having(30)])
    assert "105 samples under single, and 53" in causes.slicing_seen(having(105), [having(53)])


def test_unequal_shares_that_count_alike_are_seen() -> None:
    assert "had 3, 2 samples" in causes.counted_alike(ran(samples=(3, 2)).records, 1)
    assert not causes.counted_alike(ran(samples=(3, 2), weights=(1.2, 0.8)).records, 1)


def test_a_sum_is_known_and_told_how_dream_sees_it() -> None:
    ours, single = ran(losses=(1.0, 1.0)), ran(1, losses=(2.0, 1.0))
    cause = causes.sum_of_samples(judge(MIRRORED, ours, single), ours, single)
    assert cause.ruling is Ruling.IN
    assert "reduction='sum'" in cause.advice


@pytest.mark.parametrize(
    ("line", "ruling"),
    [
        ("A shuffle inside a training step couples samples, which lie on", Ruling.IN),
        ("since what MmBackward0 divides by cannot be told. Weigh it", Ruling.IN),
        ("reduction='auto' takes gloo", Ruling.OUT),
    ],
)
def test_coupling_that_dream_has_said_is_a_cause(line: str, ruling: Ruling) -> None:
    ours, single = ran(), ran(1)
    said = replace(ours, records=tuple(replace(each, lines=(line,)) for each in ours.records))
    held = judge(MIRRORED, said, single)
    assert causes.coupled(held, said, single).ruling is ruling
    assert causes.coupled(held, said, said).ruling is Ruling.OUT  # alone it says so too


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    first = ran(samples=(3, 2)).first
    record.write(tmp_path, first, {"w": np.ones(3)})
    assert record.read(tmp_path, 0) == first
    assert record.read_parameters(tmp_path, 0)["w"].tolist() == [1, 1, 1]
    request = RecordRequest(tmp_path, 5, ("alike",), 2)
    (asked,) = request.environ.values()
    place, _, words = asked.partition(" ")
    assert place == "dream.tools.recorder:begin"
    assert RecordRequest.of(words) == request
    assert judge(SINGLE, ran(1), ran(1)).good
