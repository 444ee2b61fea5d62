"""Which strategy and framework a block takes, before any framework is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dream
from dream import ConfigurationError, cluster
from dream._topology import Cluster, Endpoint


def place(ranks: int, hosts: tuple[str, ...] = ("one",)) -> Cluster:
    return Cluster(
        source="a test",
        world_size=ranks,
        local_world_size=ranks,
        hosts=hosts,
        master=Endpoint("127.0.0.1", 1),
    )


def at(monkeypatch: pytest.MonkeyPatch, where: Cluster, request: str | None = None) -> None:
    monkeypatch.setattr(cluster, "detect", lambda: where)
    monkeypatch.setattr(cluster, "requested_strategy", lambda: request)
    monkeypatch.setattr(cluster, "requested_framework", lambda: None)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (place(1), "single"),
        (place(2), "mirrored"),
        (place(2, ("one", "two")), "multi_worker_mirrored"),
    ],
)
def test_without_a_name_the_place_decides(
    monkeypatch: pytest.MonkeyPatch, where: Cluster, name: str
) -> None:
    at(monkeypatch, where)
    assert dream.strategy(framework="torch").name == name


def test_the_command_line_overrides_name_and_mesh_options(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    at(monkeypatch, place(1), "single")
    monkeypatch.setattr(dream._log.logger, "propagate", True)
    with caplog.at_level("INFO", logger="dream"):
        strategy = dream.strategy("mirrored", framework="torch", reduction="gloo", bucket_mb=5)
    assert strategy.name == "single"
    assert "'single' in place of the script's 'mirrored'" in caplog.text


def test_the_commands_own_mesh_options_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, place(2), "mirrored:reduction=horovod")
    strategy = dream.strategy("mirrored", framework="torch", reduction="gloo")
    assert "reduction='horovod'" in repr(strategy)


def test_single_under_several_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, place(2))
    with pytest.raises(ConfigurationError, match=r"world size 2 from a test.*dream run -n 1"):
        dream.strategy("single")


def test_a_reduction_with_nobody_to_reduce_with_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at(monkeypatch, place(1))
    with pytest.raises(ConfigurationError, match=r"reduction='gloo', world size 1"):
        dream.strategy("mirrored", reduction="gloo")


@pytest.mark.parametrize("seed", [-1, "0", 0.5])
def test_a_seed_is_a_whole_number(monkeypatch: pytest.MonkeyPatch, seed: object) -> None:
    at(monkeypatch, place(1))
    with pytest.raises(ConfigurationError, match="seed"):
        dream.strategy("single", seed=seed)  # type: ignore[arg-type]


def test_names_and_options_are_checked_before_a_framework_is_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at(monkeypatch, place(1))
    with pytest.raises(ConfigurationError, match="'mirored'"):
        dream.strategy("mirored")
    with pytest.raises(ConfigurationError, match="'speed'"):
        dream.strategy("mirrored", speed=11)
    with pytest.raises(ConfigurationError, match=r"'jax'.*tensorflow, torch"):
        dream.strategy("mirrored", framework="jax")


def test_outside_a_block_there_is_no_current_strategy() -> None:
    assert dream.current() is None


def plan(file: Path, **said: object) -> str:
    take = {"strategy": "sharded:zero=2", "devices": 2}
    file.write_text(json.dumps({"take": take, "sentence": "Nothing fits: the thriftiest"} | said))
    return str(file)


def test_auto_takes_what_a_plan_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    at(monkeypatch, place(2))
    strategy = dream.strategy(
        "auto", plan=plan(tmp_path / "plan.json"), framework="torch", clip_norm=1.0
    )
    assert strategy.name == "sharded"
    assert strategy._choice.given == {"zero": 2, "clip_norm": 1.0}


def test_the_command_line_goes_before_a_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    at(monkeypatch, place(2), "mirrored")
    strategy = dream.strategy("auto", plan=str(tmp_path / "none.json"), framework="torch")
    assert strategy.name == "mirrored"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "plan=None"),
        (
            {"take": {"strategy": "single", "devices": 1}},
            "chooses single for 1 dev.*, and 2 here.*plan again with --devices 2",
        ),
        (
            {"take": {"strategy": "single", "devices": 1}, "devices": 2},
            "chooses single for 1 dev.*, and 2 here.*or name another of its strategies",
        ),
        ({"take": None}, "No candidate in this plan fits.*the thriftiest"),
        ("{", "cannot be read"),
        ("[]", "is not a plan"),
        ('{"take": {}, "sentence": ""}', "is not a plan"),
    ],
)
def test_a_plan_that_says_nothing_for_this_place_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: object, words: str
) -> None:
    at(monkeypatch, place(2))
    file = tmp_path / "plan.json"
    if isinstance(said, str):
        file.write_text(said)
    elif isinstance(said, dict):
        plan(file, **said)
    with pytest.raises(ConfigurationError, match=words):
        dream.strategy("auto", plan=None if said is None else str(file), framework="torch")
