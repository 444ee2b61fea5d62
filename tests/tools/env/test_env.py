"""`dream env`: what is found here, and what is tried."""

from __future__ import annotations

import json

import pytest

from dream.cli import main
from dream.launch.forks.forked import SERVER
from dream.tools.env import _tried, facts, look, pasted, show


def env(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    """What the command prints."""
    with pytest.raises(SystemExit) as ended:
        main(["env", *given])
    assert not ended.value.code
    return capsys.readouterr().out


def test_quick_for_programs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1234",
                       "MASTER_ADDR": "localhost", "DREAM_TOKEN": "a-word-8"}.items():  # fmt: skip
        monkeypatch.setenv(name, text)
    facts = json.loads(env(capsys, "--quick", "--json"))
    assert facts["versions"]["dream-systems"]
    assert facts["cores"] >= 1
    assert {**facts["cluster"], "variables": None} == {
        "launcher": "torchrun", "rank": 1, "world_size": 2, "hosts": ["localhost"],
        "variables": None,
    }  # fmt: skip
    assert facts["cluster"]["variables"]["RANK"] == "1"
    assert facts["cluster"]["variables"]["DREAM_TOKEN"] == "(set)"
    assert facts["reductions"]["torch"]["gloo"] == {"works": None, "said": ""}
    assert facts["reductions"]["tensorflow"]["nccl"]["said"] == "needs GPUs" or facts["gpus"]


def test_the_table_fits_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    found = facts()
    found["versions"]["horovod"] = "0.28.1+" + 12 * "dream."
    show(found, look())
    lines = capsys.readouterr().out.partition("For a bug report")[0].splitlines()
    assert len(lines) > 20
    assert max(map(len, lines)) <= 80


def test_a_place_that_cannot_be_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DREAM_STALL_SECONDS", "DREAM_STARTUP_SECONDS", "DREAM_FORK_SERVER"):  # the tests'
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "1")
    text = env(capsys, "--quick")
    assert text.rstrip().endswith("```")
    _, _, pasted = text.partition("paste this:")
    assert "launcher: cannot be told, variables: RANK" in pasted
    assert "variables are incomplete: WORLD_SIZE missing" in pasted


@pytest.mark.slow
def test_what_nothing_stands_in_the_way_of_works(capsys: pytest.CaptureFixture[str]) -> None:
    before = look()
    found = json.loads(env(capsys, "--json", "--timeout", "400"))["reductions"]
    for framework, tries in before.items():
        for name, each in tries.items():
            wanted = each.works is None
            assert found[framework][name]["works"] is wanted, (framework, name, found)
    assert found["torch"]["gloo"]["works"]


def test_one_that_fails_is_told_and_the_next_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "absent0")
    found = _tried("torch", ["gloo", "shared_memory"], 400)
    assert found["gloo"].works is False
    assert "absent0" in found["gloo"].said
    assert found["shared_memory"].works
    lines = "\n".join(pasted(_facts(), {"torch": found}))
    assert "shared_memory works (1 MiB in" in lines


def test_one_that_gives_no_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SERVER, "")  # a rank that was forked may be quick enough
    found = _tried("torch", ["gloo"], 0.2)
    assert found["gloo"].works is False
    assert found["gloo"].said == "no answer within 0.2 s"


def _facts() -> dict[str, object]:
    from dream.tools.env import facts

    return facts()
