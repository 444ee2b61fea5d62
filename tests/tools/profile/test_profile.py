"""Where steps' time goes: by arithmetic on recorded clocks, and of real ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dream._errors import ConfigurationError, WorkerFailed
from dream.stall.phases import Phase
from dream.tools.profile import report
from dream.tools.profile.main import main
from dream.tools.profile.spans import CollectiveCall, RankProfile, Span
from dream.tools.profile.split import MOVING, REST, WAITING, split, stragglers

HERE = Path(__file__).parent


def recorded(rank: int, late: float) -> RankProfile:
    """Two steps of 10 s, by a clock of the test's own. late: seconds by which input takes longer
    and all that follows comes later."""
    spans, calls = [], []
    for start in (100.0, 110.0):
        input_ends = start + 1 + late
        spans += [
            Span(Phase.INPUT, start, input_ends),
            Span(Phase.FORWARD, input_ends, input_ends + 1),
            Span(Phase.BACKWARD, input_ends + 1, start + 8),
            Span(Phase.OPTIMIZER, start + 8, start + 9),
        ]
        calls += [CollectiveCall("a bucket", input_ends + 2, start + 7.5)]
    return RankProfile(
        rank, "torch", "mirrored", "gloo", (100.0, 110.0, 120.0), tuple(spans), tuple(calls), 1e-5
    )


def test_parts_add_up_and_a_late_rank_is_waited_for() -> None:
    early, late = split([recorded(0, 0.0), recorded(1, 3.0)])
    assert early.parts == pytest.approx(
        {Phase.INPUT: 1, Phase.FORWARD: 1, Phase.BACKWARD: 1.5, WAITING: 3, MOVING: 1.5,
         Phase.OPTIMIZER: 1, REST: 1}
    )  # fmt: skip
    assert early.waits == pytest.approx({1: 3.0})
    assert (late.parts[WAITING], late.waits) == (0.0, {})
    assert late.parts[Phase.INPUT] == pytest.approx(4.0)
    for row in (early, late):
        assert sum(row.parts.values()) == pytest.approx(row.seconds)
    (wait,) = stragglers([recorded(0, 0.0), recorded(1, 3.0)])
    assert (wait.rank, wait.waited, wait.phase) == (1, pytest.approx({0: 3.0}), Phase.INPUT)


def test_a_line_from_a_fifth_on() -> None:
    assert report.waits([recorded(0, 0.0), recorded(1, 1.9)]) == []
    (line,) = report.waits([recorded(0, 0.0), recorded(1, 2.1)])
    assert line == ("Rank 1 is waited for: 2100.0 ms of each step (21%), while it is in input.")


def test_calls_that_were_not_made_alike_are_nobodys_wait() -> None:
    other = replace(recorded(1, 3.0), calls=(CollectiveCall("barrier", 103.0, 104.0),))
    early, _ = split([recorded(0, 0.0), other])
    assert (early.parts[WAITING], early.waits) == (0.0, {})
    assert early.parts[MOVING] == pytest.approx(4.5)


def test_a_trace_in_chromes_format() -> None:
    said = json.loads(json.dumps(report.trace([recorded(0, 0.0), recorded(1, 3.0)])))
    whole = [event for event in said["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in whole} == {0, 1}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in whole)
    first = next(e for e in whole if e["name"] == "input" and e["pid"] == 1)
    assert (first["ts"], first["dur"]) == (0.0, 4e6)
    names = {e["args"]["name"] for e in said["traceEvents"] if e["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "reduction",
    [
        "shared_memory",
        pytest.param("gloo", marks=pytest.mark.exhaustive),
        pytest.param("horovod", marks=[pytest.mark.exhaustive, pytest.mark.ring]),
    ],
)
def test_a_rank_whose_data_is_slow(
    tmp_path: Path, reduction: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figures, traced, page = tmp_path / "all.json", tmp_path / "report.json", tmp_path / "page"
    options = ["--json", str(figures), "--trace", str(traced), "--report", str(page)]
    script = str(HERE / "profile_torch.py")
    assert main([script, *options, "--steps", "20", "--", "10", reduction]) == 0
    told = capsys.readouterr().out
    assert "Rank 1 is waited for: " in told
    assert "while it is in input" in told
    assert max(map(len, told.splitlines())) <= 80
    said = json.loads(figures.read_text())
    assert (said["framework"], said["reduction"], said["steps"]) == ("torch", reduction, 20)
    first, second = said["ranks"]
    assert second["parts"]["input"] >= 4 * 0.010  # it reads four samples a step
    assert first["waits_for"]["1"] > 0.5 * 4 * 0.010
    assert all(first["parts"][part] > 0 for part in ("input", "forward", "backward", "optimizer"))
    for row in said["ranks"]:
        assert sum(row["parts"].values()) == pytest.approx(row["step_seconds"], rel=1e-6)
    events = json.loads(traced.read_text())["traceEvents"]
    assert sum(event["name"].startswith("step ") for event in events) == 40
    text = (page / "report.html").read_text()
    assert text.count("<svg") == 1
    assert "Rank 1 is waited for" in text
    assert (tmp_path / "report.horovod.json").exists() == (reduction == "horovod")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_rank_of_keras_that_is_slow(
    tmp_path: Path,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = tmp_path / "all.json"
    script = str(HERE / "profile_keras.py")
    with monkeypatch.context() as patch:
        patch.setenv("KERAS_BACKEND", backend)
        options = ["--json", str(figures), "--steps", "20", "--", "200", "shared_memory"]
        assert main([script, *options]) == 0
    assert "Rank 1 is waited for: " in capsys.readouterr().out
    said = json.loads(figures.read_text())
    assert (said["framework"], said["steps"]) == (backend, 20)
    first, second = said["ranks"]
    assert first["waits_for"]["1"] > 0.1
    assert second["parts"]["waiting"] < 0.1
    computing = ("step",) if backend == "tensorflow" else ("forward", "backward")
    for row in said["ranks"]:
        assert all(row["parts"][part] > 0 for part in (*computing, "input", "optimizer"))
        assert sum(row["parts"].values()) == pytest.approx(row["step_seconds"], rel=1e-6)


@pytest.mark.slow
def test_what_shows_nothing_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text("print('no block')")
    with pytest.raises(ConfigurationError, match="cannot be profiled"):
        main([str(script), "-n", "1"])
    script.write_text("raise ValueError('in the script')")
    with pytest.raises(WorkerFailed, match="in the script"):
        main([str(script), "-n", "1"])
    script.write_text("import torch, dream\nwith dream.strategy('parameter_server'): pass")
    with pytest.raises(WorkerFailed, match="no common step"):
        main([str(script), "-n", "2"])
    with pytest.raises(ConfigurationError, match="--warm-up 0"):
        main([str(script), "--warm-up", "0"])
