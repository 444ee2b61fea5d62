"""Ranks that wait for one that does not come: real ones, without a launcher that would end them."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
import stall_job

SECONDS = "6"
"""A stall time; half of it is when the line comes."""

LONG = "600"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reduction"),
    [
        ("train_torch.py", "gloo"),
        pytest.param("train_torch.py", "shared_memory", marks=pytest.mark.exhaustive),
        pytest.param("train_torch.py", "horovod", marks=[pytest.mark.exhaustive, pytest.mark.ring]),
        pytest.param("train_split.py", "sharded", marks=pytest.mark.exhaustive),
        pytest.param("train_split.py", "zero=1", marks=pytest.mark.exhaustive),
        pytest.param("train_split.py", "tensor", marks=pytest.mark.exhaustive),
        pytest.param("train_split.py", "pipeline", marks=pytest.mark.exhaustive),
        pytest.param("train_split.py", "local_sgd", marks=pytest.mark.exhaustive),
        pytest.param("train_keras.py", "grpc", marks=pytest.mark.exhaustive),
        pytest.param("train_keras.py", "shared_memory", marks=pytest.mark.exhaustive),
        pytest.param("train_keras.py", "horovod", marks=[pytest.mark.exhaustive, pytest.mark.ring]),
    ],
)
def test_a_stopped_rank_ends_the_wait_and_is_named(
    tmp_path: Path, script: str, reduction: str
) -> None:
    with stall_job.job(
        script, reduction, "stop", folder=tmp_path, size=3, DREAM_STALL_SECONDS=SECONDS
    ) as three:
        for rank in range(3):
            three.wait_for_mark(f"trains{rank}")
        three.signal(1, signal.SIGSTOP)
        named = []
        for rank in (0, 2):
            assert three.ended(rank) not in (0, None)
            said = three.said(rank)
            # one who is through the backward pass, of whose ring a part is enough, misses two
            if re.search("Desynchronized: Rank(s 0,)? 1 did not come to ", said):
                named.append(rank)
                assert f"within {SECONDS} s" in said
                assert "rank 1 is stopped" in said
            else:  # the one that knew first has left, which gloo says to the other at once
                assert "closed by peer" in said, said
        assert named
        assert "dream: ranks 0, 2 have waited " in three.said(0)
        assert "dream: " not in three.said(2), "one says it for all"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reduction", "hosts", "seconds"),
    [
        ("shared_memory", 1, 10),
        pytest.param("gloo", 1, 10, marks=pytest.mark.exhaustive),
        pytest.param("gloo", 2, 16, marks=pytest.mark.exhaustive),
    ],
)
def test_a_long_checkpoint_is_shown_and_harms_nobody(
    tmp_path: Path, reduction: str, hosts: int, seconds: int
) -> None:
    """Rank 1, which waits, is itself stopped meanwhile: with that it would be beyond the stall
    time, and it does not count."""
    with stall_job.job(
        "train_torch.py", reduction, "checkpoint", "8", folder=tmp_path, hosts=hosts,
        DREAM_STALL_SECONDS=str(seconds),
    ) as two:  # fmt: skip
        two.wait_for_mark("trains1")
        said = two.wait_for_words(0, "in main")
        assert re.search(r"rank 1 has waited \d+ s in ", said), said
        assert "for rank 0. Rank 0 is alive, in checkpoint, after training step 4" in said
        assert 'train_torch.py", line ' in said
        two.signal(1, signal.SIGSTOP)
        time.sleep(seconds * 0.6)
        two.signal(1, signal.SIGCONT)
        time.sleep(0.5)
        two.mark("go")
        assert [two.ended(rank) for rank in range(2)] == [0, 0], two.said(0) + two.said(1)
        assert "dream: " not in two.said(1), two.said(1)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_call_that_holds_its_interpreter_is_shown(tmp_path: Path) -> None:
    """The stack is asked for by a signal, which the script has not taken."""
    with stall_job.job(
        "train_torch.py", "gloo", "held", folder=tmp_path, DREAM_STALL_SECONDS=SECONDS
    ) as two:
        two.wait_for_mark("held")
        assert two.ended(0) == 1
        said = two.said(0)
        assert "rank 1 runs, and a call into C holds its interpreter" in said, said
        assert "in held" in said


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_stopped_server_is_named(tmp_path: Path) -> None:
    with stall_job.job(
        "train_servers.py", folder=tmp_path, size=3, DREAM_STALL_SECONDS=SECONDS
    ) as three:
        for rank in range(2):
            three.wait_for_mark(f"trains{rank}")
        three.signal(2, signal.SIGSTOP)
        for rank in range(2):
            assert three.ended(rank) == 1
            said = three.said(rank)
            assert "Desynchronized: Rank 2 did not come to an answer of the servers" in said, said
            assert "rank 2 is stopped" in said
        assert "s in an answer of the servers for rank 2" in three.said(0)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_of_another_host_that_is_stopped(tmp_path: Path, victim: int) -> None:
    """Rank 0 serves the store that the other would ask."""
    with stall_job.job(
        "train_torch.py", "gloo", "stop", folder=tmp_path, hosts=2, DREAM_STALL_SECONDS=SECONDS
    ) as two:
        for rank in range(2):
            two.wait_for_mark(f"trains{rank}")
        two.signal(victim, signal.SIGSTOP)
        assert two.ended(1 - victim) == 1
        said = two.said(1 - victim)
        assert f"Rank {victim} did not come to backward() within 6 s" in said, said
        assert f"rank {victim} says nothing: it is stopped, cut off or busy" in said


def test_who_dies_before_it_has_connected_is_gone_at_once(tmp_path: Path) -> None:
    """Between hosts nothing closes that was never open."""
    with stall_job.job("receive.py", folder=tmp_path, hosts=2, DREAM_STALL_SECONDS=LONG) as two:
        assert two.ended(1) == 9
        assert two.ended(0) == 0, two.said(0)
        assert "WorkerFailed: Rank 1 is gone" in two.said(0)


RING = pytest.mark.ring


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("script", "reduction", "hosts", "slow", "words"),
    [
        ("train_torch.py", "shared_memory", 1, "own", "in the script's own code"),
        ("train_torch.py", "shared_memory", 1, "input", "reading input"),
        ("train_torch.py", "gloo", 1, "forward", "in forward"),
        ("train_torch.py", "gloo", 2, "own", "in the script's own code"),
        pytest.param("train_torch.py", "horovod", 1, "forward", "in forward", marks=RING),
        ("train_keras.py", "shared_memory", 1, "own", "in the script's own code"),
        ("train_keras.py", "shared_memory", 1, "input", "reading input"),
        pytest.param("train_keras.py", "horovod", 1, "input", "reading input", marks=RING),
    ],
)
def test_a_rank_that_is_always_late_is_named(
    tmp_path: Path, script: str, reduction: str, hosts: int, slow: str, words: str
) -> None:
    """While it trains and at the end, once each, and what it did meanwhile."""
    with stall_job.job(script, reduction, "late", "500", slow, folder=tmp_path, hosts=hosts) as two:
        assert [two.ended(rank) for rank in (0, 1)] == [0, 0]
        said = two.said(0)
        assert said.count("dream: rank 1 is waited for: the others stood still for it") == 1, said
        assert said.count("dream: rank 1 was waited for") == 1, said
        assert re.search(rf"was waited for: .* s, while it was {words}\.", said), said
        assert "waited for" not in two.said(1)


@pytest.mark.exhaustive
def test_a_checkpoint_that_fails_does_not_wait_for_a_rank_that_is_gone(tmp_path: Path) -> None:
    """Without a launcher that would end both; and what the disk said is what is told."""
    with stall_job.job("save_full.py", folder=tmp_path, DREAM_STALL_SECONDS=LONG) as two:
        assert two.ended(1) == -signal.SIGKILL
        assert two.ended(0) == 0
        said = two.said(0)
        assert "refused DreamError The checkpoint was not written" in said, said
        assert "File too large" in said, said
