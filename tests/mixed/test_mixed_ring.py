"""One job, ranks of both frameworks: what they learn is what one device learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mixed_data import SAMPLES
from mixed_launching import figures

import dream

pytestmark = pytest.mark.slow
LIMIT = 1e-5
BOTH = "torch,tensorflow"
PLAIN = ["adamw", "outside", "sentences", "fit batches", "fit adamw"]
WITH_FIGURES = [
    "momentum",
    "counted",
    "steps",
    "fit",
    "fit outputs",
    "batch by batch",
    "keras steps",
]


def alone(name: str) -> Any:
    return figures("torch", 1, "cases")[0][name]


def every(name: str, frameworks: str = BOTH, ranks: int = 2, group: str = "cases",
          strategy: str | None = None) -> list[Any]:  # fmt: skip
    found = [rank[name] for rank in figures(frameworks, ranks, group, strategy)]
    for said in found:
        assert not isinstance(said, str), said
    return found


def weights(said: Any) -> list[np.ndarray]:
    return said[0] if isinstance(said, tuple) else said


def apart(ours: Any, theirs: Any) -> float:
    pairs = zip(weights(ours), weights(theirs), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)


@pytest.mark.parametrize("name", PLAIN + WITH_FIGURES)
def test_learns_what_one_device_learns(name: str) -> None:
    for rank in every(name):
        assert apart(rank, alone(name)) <= LIMIT


@pytest.mark.parametrize("name", ["momentum", "adamw", "counted", "steps", "sentences", "fit"])
def test_ranks_hold_the_same_weights_after_an_epoch(name: str) -> None:
    first, second = every(name)
    assert apart(first, second) == 0.0


@pytest.mark.parametrize("name", ["steps", "keras steps", "batch by batch"])
def test_losses_of_steps_are_global_on_every_rank(name: str) -> None:
    for _, losses in every(name):
        np.testing.assert_allclose(losses, alone(name)[1], rtol=1e-5)


def test_evaluation_is_global() -> None:
    for _, right in every("momentum"):
        assert right == pytest.approx(alone("momentum")[1], abs=1e-6)
        assert round(right * SAMPLES, 4) == round(right * SAMPLES)


@pytest.mark.parametrize("name", ["fit", "fit outputs"])
def test_logs_of_fit_are_global(name: str) -> None:
    for rank in every(name):
        assert rank[1].keys() == alone(name)[1].keys()
        for log, values in rank[1].items():
            np.testing.assert_allclose(values, alone(name)[1][log], rtol=1e-4, err_msg=log)


def test_where_an_embeddings_rows_are_added_up_it_is_said() -> None:
    said = [any("added up by entry" in line for line in lines) for lines in every("looked up")]
    assert said == [False, True]


def test_predictions_are_whole_on_every_rank() -> None:
    for _, _, said in every("fit"):
        np.testing.assert_allclose(said, alone("fit")[2], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["pictures", "fit pictures"])
def test_batch_normalisation_learns_what_two_ranks_of_torch_learn(name: str) -> None:
    """Each rank normalises its share, so one device learns other weights. torch keeps the unbiased
    variance, Keras the biased one: what they keep together lies between."""
    oracle = every(name, "torch", 2, "two")[0]
    for rank in every(name, BOTH, 2, "two"):
        *trained, variance, out = (rank[i] for i in (0, 1, 2, 3, 4, 5, 6))
        assert apart([*trained, out], [*oracle[:5], oracle[6]]) <= LIMIT
        np.testing.assert_allclose(variance, oracle[5], rtol=1e-3)


def test_a_communicator_without_a_strategy() -> None:
    for reduction, total in every("communicator"):
        assert reduction == "horovod"
        assert total.tolist() == [1.0] * 3


def refused(name: str) -> list[str]:
    return [rank[name] for rank in figures(BOTH, 2, "refusals")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other shape", ("Desynchronized: The ranks built different models", "rank 0 (torch)",
                         "rank 1 (tensorflow)", "(dense) bias float32[17]", "bias float32[16]")),
        ("other kind", ("Desynchronized: The ranks built different models", "(layer_norm)",
                        "(dense)")),
        ("frozen", ("Desynchronized: The ranks add up different things", "float32[5]")),
        ("other order", ("Desynchronized: The ranks read different data", "the first batch",
                         "strategy.order")),
        ("fit beside steps", ("Desynchronized: Ranks of two frameworks", "rank 0 compares the "
                              "first batch", "rank 1 starts to train by Keras's fit")),
        ("gloo", ("ConfigurationError: Ranks of two frameworks", "reduction='gloo'",
                  "torch on rank 0, tensorflow on rank 1", "reduction='horovod'")),
        ("compressed", ("Unsupported: ", "another framework", "compression='float16'", "Remove")),
        ("adasum", ("Unsupported: ", "another framework", "op='adasum'", "Remove")),
        ("another seed", ("Desynchronized: The ranks opened different blocks", "seed=5",
                          "seed=4")),
        ("unused", ("Desynchronized: ",)),
        ("other batches", ("Desynchronized: The ranks read different batches",)),
    ],
)  # fmt: skip
def test_refused_on_every_rank(name: str, words: tuple[str, ...]) -> None:
    for said in refused(name):
        for word in words:
            assert word in said, said


@pytest.mark.parametrize(
    ("name", "rank", "words"),
    [
        (
            "two biases",
            0,
            ("Unsupported: This layer sums several parameters", "bias_ih_l0", "lstm"),
        ),
        ("frozen later", 0, ("ConfigurationError: What is trained has changed",)),
        ("own sampler", 0, ("Unsupported: Ranks of another framework", "shuffle=True")),
        ("own loop", 1, ("Unsupported: Beside ranks", "train_step")),
    ],
)
def test_refused_where_it_is_written(name: str, rank: int, words: tuple[str, ...]) -> None:
    for word in words:
        assert word in refused(name)[rank]


def test_all_goes_on_after_refusals() -> None:
    for rank in every("after all that", group="refusals"):
        assert apart(rank, alone("momentum")) <= LIMIT


def test_weights_that_have_drifted_are_brought_back() -> None:
    assert apart(*every("resynced", group="refusals")) == 0.0
    assert apart(*every("left apart", group="refusals")) > 5e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("frameworks", "ranks", "strategy"),
    [
        ("torch,tensorflow,torch", 3, None),
        ("tensorflow,torch", 2, "multi_worker_mirrored"),
        (BOTH, 2, "mirrored:reduction=shared_memory"),
    ],
)
@pytest.mark.parametrize("name", ["momentum", "fit"])
def test_other_mixtures(name: str, frameworks: str, ranks: int, strategy: str | None) -> None:
    """Three ranks; and TensorFlow first, whose weights are then the first ones."""
    found = every(name, frameworks, ranks, "few", strategy)
    if frameworks.startswith("torch") or name == "fit":
        for rank in found:
            assert apart(rank, alone(name)) <= LIMIT
    for rank in found[1:]:
        assert apart(rank, found[0]) == 0.0


def test_the_launcher_refuses_before_it_starts() -> None:
    with pytest.raises(dream.ConfigurationError, match="no other transport"):
        dream.launch(print, n=2, framework=BOTH, strategy="mirrored:reduction=gloo")
