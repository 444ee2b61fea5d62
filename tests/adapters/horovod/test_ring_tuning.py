"""The ring tunes itself where asked, and says what it chose."""

from __future__ import annotations

import pytest
import ring_tuning

import dream

pytestmark = pytest.mark.slow

QUICK = {
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "3",
}


@pytest.mark.parametrize(
    ("framework", "other"),
    [("torch", "gloo"), pytest.param("tensorflow", "grpc", marks=pytest.mark.exhaustive)],
)
def test_what_the_ring_chose_is_said_once(framework: str, other: str) -> None:
    ranks = dream.launch(
        ring_tuning.run, framework, 200, n=2, framework=framework, timeout=500, env=QUICK
    )
    for refusal, _ in ranks:
        assert f"reduction={other!r}" in refusal
        assert "reduction='horovod'" in refusal
    (_, (line,)), (_, others) = ranks
    assert "tuned itself in" in line
    assert "MB/s" in line
    assert others == []
