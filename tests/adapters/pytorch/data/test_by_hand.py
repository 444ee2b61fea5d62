"""Passes that begin before a loop trains by gradients: one device's, or refused."""

from __future__ import annotations

from itertools import product

import by_hand_passes
import pytest

import dream
from dream import WorkerFailed

WHOLE = "or was read before there was an optimizer, is whole on every rank"
UNLIKE = {
    ("stream", False): "The ranks read different streams. Received: other samples",
    ("stream", True): "The ranks read different streams. Received: other samples",
    ("set", True): "The ranks read different batches from the same source",
}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_what_is_read_alike_is_one_devices(ranks: int) -> None:
    """What samples draw as they are read is no draw of the loop's, of which a line would tell."""
    for data, steps in product(("stream", "set", "noisy set"), (False, True)):
        plain = by_hand_passes.train("", data, steps=steps, by_rank=False)
        found = dream.launch(
            by_hand_passes.train, "mirrored", data, n=ranks, framework="torch", timeout=300,
            steps=steps, by_rank=False,
        )  # fmt: skip
        for each in found:
            assert each["ends"] == pytest.approx(plain["ends"], rel=0, abs=1e-6)
            assert each["rows"][0] == 6
            assert (each["rows"] == plain["rows"]) is not steps
        said = [line for line in found[0]["said"] if "reduction" not in line]
        said = [line for line in said if "a sample of this loader draws random numbers" not in line]
        assert [WHOLE in line for line in said] == [True] * steps


@pytest.mark.parametrize(("data", "steps"), UNLIKE)
def test_what_ranks_read_each_by_itself_is_refused(data: str, *, steps: bool) -> None:
    with pytest.raises(WorkerFailed, match=UNLIKE[data, steps]):
        dream.launch(
            by_hand_passes.train, "mirrored", data, n=2, framework="torch", timeout=300,
            steps=steps, by_rank=True,
        )  # fmt: skip


def test_rank_zero_may_count_a_stream_first() -> None:
    """It would wait for ranks that wait for it."""
    env = {"DREAM_STALL_SECONDS": "60"}
    found = dream.launch(by_hand_passes.count_first, n=2, framework="torch", timeout=300, env=env)
    assert found == [by_hand_passes.ROWS, 0]
