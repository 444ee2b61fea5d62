"""What replicas cannot share of a step of one's own is said, and nothing is of what they can."""

from __future__ import annotations

import pytest
from keras_figures import DEVICES, asked, once, over
from keras_launching import CELLS, Cell, call

pytestmark = pytest.mark.slow
SAID = {
    "sum": "Received: own, which is no mean",
    "largest, tracked in tests": "The metric 'tracked' gives one number for a batch",
    "masked": "no mean of its parts'",
    "coupled": "no mean of its parts'",
    "left out": "no mean of its parts'",
    "mixed": "draws random numbers by which samples hang on others",
    "mixed in a call": "draws random numbers by which samples hang on others",
    "mixed in a loss": "draws random numbers by which samples hang on others",
    "by a metric": "no mean of its parts'",
    "joined": "of a number that the script has written down",
    "along the samples": "another output in a part of its batch",
    "capped": "another output in a part of its batch",
    "clipped": "another gradient in a part of its batch",
    "clipped in bfloat16": "another gradient in a part of its batch",
    "rate": "Unsupported: A step sets its learning rate by its batch",
    "of positives": "gives one number for a batch",
    "remembers False": "'remembers' changes a variable of its own by its batch",
    "a root": "Received: root, which is no mean",
    "a root, tested": "Received: root, which is no mean",
    "of metrics": "Received: twice, which is no mean",
    "state False": "kept is a state that",
    "metric False": "metric worst is more than a sum",
    "root_error": "The metric 'root_error' gives one number for a batch",
}
QUIET = (
    "mean",
    "noisy mean",
    "beside noise",
    "penalised",
    "compiled",
    "turned",
    "remembers True",
    "a mean",
    "a mean, tested",
    "state True",
    "metric True",
    "mean_error",
    "mean, tracked",
    "sum, tracked",
    "overflowing",
    "overflowing, tracked",
    "mean, tracked in tests",
    "sum, tracked in tests",
    "drawn in a call",
    "drawn in a loss",
    "spectral",
    "attends",
    "attends to numbers",
    "attends in bfloat16",
    "attends in a call of its own",
)


ON_TENSORFLOW = (
    "sum", "capped", "clipped", "rate", "state False", "a root, tested", "noisy mean", "turned",
    "counter", "mixed in a call", "drawn in a loss", "spectral",
)  # fmt: skip
"""What `make test` asks of TensorFlow, one of each kind: what is said is no backend's own, and
torch is asked all in a tenth of the time."""
NAMES = (*SAID, *QUIET, "counter")
MODULE = "keras_own_steps"


@pytest.fixture(name="ranks")
def said_on_ranks(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    cell: Cell = request.param
    given = (MODULE, "said", cell.devices, asked(request))
    found: list[dict[str, str]] = once((MODULE, cell), lambda: call(cell, *given))
    return found


@over(NAMES, held={*NAMES} - {*ON_TENSORFLOW}, further=[DEVICES])
def test_what_replicas_cannot_share_is_said_and_nothing_of_what_they_can(
    ranks: list[dict[str, str]], name: str
) -> None:
    said = ranks[0][name]
    if name == "counter":  # a number that the step counts with stays
        assert said == "1.0"
    elif name in QUIET:
        assert not said
    else:
        assert SAID[name] in said


def test_devices_that_cannot_meet_within_a_condition_say_so() -> None:
    (said,) = call(DEVICES, MODULE, "said", DEVICES.devices, ["conditional"])
    refused = "Unsupported: The devices of one process cannot meet"
    assert said["conditional"].startswith(refused)


@pytest.mark.parametrize(
    "cell", [*CELLS[:2], pytest.param(CELLS[2], marks=pytest.mark.exhaustive)], ids=str
)
def test_answers_that_hang_on_other_rows_are_of_whole_batches(cell: Cell) -> None:
    for shape in call(cell, "keras_own_numbers", "answers_by_other_rows"):
        assert shape == [8, 8]
