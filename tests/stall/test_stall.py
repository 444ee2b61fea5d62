"""The policy's parts, without a job: clocks are the test's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from dream import cluster, stall
from dream._topology import Cluster
from dream.cluster import export
from dream.stall import activity, phases, stacks
from dream.stall.activity import ThreadObserver, progress
from dream.stall.page import Neighbour, StatusPage
from dream.stall.phases import Phase, PhaseRule
from dream.stall.status import (
    INPUT_OR_LINK,
    LINK,
    RankStatus,
    Standstill,
    find_standstill,
    none_can_go_on,
    speaker,
    stack_lines,
    stuck,
    warning,
    whereabouts,
)
from dream.stall.status import ProcessState as State

WAITS = {"call": "backward()", "waited": 61.0}


def test_a_link_that_is_cut_is_told_from_a_rank_that_is_missing() -> None:
    """All ranks are in one call of one step; a receive waits for another call."""

    def said(*ranks: RankStatus) -> str:
        wait = find_standstill(ranks)
        assert wait is not None
        return warning(wait, dict(enumerate(ranks)), 600.0)

    zero, one = (RankStatus(rank, steps=4, call="backward()", waited=61.0) for rank in (0, 1))
    assert LINK in said(zero, one)
    assert LINK not in said(zero, replace(one, steps=3))
    assert LINK not in said(zero, replace(one, call="barrier()"))
    assert LINK not in said(zero, replace(one, state=State.STOPPED))
    assert LINK not in said(*(replace(each, call="receive()") for each in (zero, one)))
    assert INPUT_OR_LINK in said(*(replace(each, phase=Phase.STEP) for each in (zero, one)))


def test_the_stall_time_is_half_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DREAM_STALL_SECONDS")
    assert cluster.stall_seconds() == 1800.0


def test_the_ring_goes_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in export._ring_defaults():
        monkeypatch.delenv(f"HOROVOD_{name}", raising=False)
    monkeypatch.setenv("DREAM_STALL_SECONDS", "4.5")
    export.export_horovod(Cluster())
    assert os.environ.pop("HOROVOD_STALL_CHECK_TIME_SECONDS") == "5"
    assert int(os.environ.pop("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")) > 5
    os.environ.pop("HOROVOD_DYNAMIC_PROCESS_SETS")


def test_time_in_which_the_waiting_process_was_stopped_does_not_count() -> None:
    now = [100.0]
    patience = stall.Patience(10.0, clock=lambda: now[0])
    for since, passed in ((0.5, 0.5), (3600.0, 1.5), (0.5, 2.0)):
        now[0] += since
        assert not patience.over()
        assert patience.passed == passed
    for _ in range(9):
        now[0] += 1.0
        over = patience.over()
    assert over
    patience.restart()
    assert not patience.over()


@pytest.mark.parametrize(
    ("ranks", "waiting", "culprits"),
    [
        pytest.param([{}, WAITS, WAITS], (1, 2), (0,), id="about its own business"),
        pytest.param([WAITS, {"state": State.STOPPED}, WAITS], (0, 2), (1,), id="stopped"),
        pytest.param(
            [WAITS, {"state": State.STOPPED, **WAITS}], (0,), (1,), id="stopped in the wait"
        ),
        pytest.param([WAITS, {"state": State.SILENT}], (0,), (1,), id="silent"),
        pytest.param([WAITS, WAITS], (0, 1), (), id="all of them"),
        pytest.param(
            [WAITS, {**WAITS, "ranks": (3,)}, {}, {}], (0, 1), (3,), id="one knows for whom"
        ),
        pytest.param(
            [{**WAITS, "ranks": (1,)}, {**WAITS, "ranks": (2,)}, {}], (0, 1), (2,), id="a chain"
        ),
        pytest.param(
            [WAITS, {"state": State.STOPPED}, {"state": State.GONE, **WAITS}], (0,), (1,),
            id="one gave up before",
        ),
        pytest.param(
            [WAITS, {"state": State.STOPPED}, {"gave_up": True}], (0,), (1,), id="one raised before"
        ),
        pytest.param([WAITS, {"state": State.GONE, **WAITS}], (0,), (1,), id="gone"),
    ],
)  # fmt: skip
def test_who_waits_for_whom(
    ranks: list[dict[str, object]], waiting: tuple[int, ...], culprits: tuple[int, ...]
) -> None:
    made = [RankStatus(rank, **fields) for rank, fields in enumerate(ranks)]  # type: ignore[arg-type]
    wait = find_standstill(made)
    assert wait is not None
    assert (wait.waiting, wait.culprits, wait.seconds) == (waiting, culprits, 61.0)


def test_nobody_waits_while_all_compute() -> None:
    assert find_standstill([RankStatus(0), RankStatus(1, quiet=3600.0)]) is None


def test_the_lowest_that_can_speaks() -> None:
    stopped = RankStatus(0, State.STOPPED)
    assert speaker([stopped, RankStatus(1, State.HELD), RankStatus(2), RankStatus(3)]) == 2
    assert speaker([stopped]) is None


def test_what_is_said() -> None:
    stack = ('File "train.py", line 3 in save', 'File "train.py", line 9 in <module>')
    ranks = {0: RankStatus(0, steps=7, stack=stack), 1: RankStatus(1, **WAITS)}  # type: ignore[arg-type]
    wait = find_standstill(ranks.values())
    assert wait is not None
    assert warning(wait, ranks, 1800.0).splitlines() == [
        "rank 1 has waited 61 s in backward() for rank 0. Rank 0 is alive, in save, after training "
        "step 7. Where this goes on, it is an error after 1800 s (DREAM_STALL_SECONDS).",
        "  rank 0, innermost call first:",
        f"    {stack[0]}",
        f"    {stack[1]}",
    ]


def test_the_scripts_own_line_is_said_however_deep_the_stack_is() -> None:
    within = [f'File "{stall.__file__}", line {n} in deep' for n in range(12)]
    script = 'File "train.py", line 9 in <module>'
    deep, flat = ((*within[:depth], script) for depth in (12, 3))
    ranks = {0: RankStatus(0, stack=deep), 1: RankStatus(1, stack=flat)}
    wait = Standstill((0, 1), (), "backward()", 61.0)
    lines = stack_lines(wait, ranks)
    assert lines[10:12] == [f"    {within[9]}", "    ... called at train.py:9 in <module>"]
    assert lines[-1] == '    File "train.py", line 9 in <module>'


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        (("x.py", "load"), Phase.OWN),
        (("x.py", "get", "torch/data.py", "next"), Phase.INPUT),
        (("torch/nn.py", "call", "torch/back.py", "backward"), Phase.BACKWARD),
        (("x.py", "reduce", "torch/save.py", "save", "torch/nn.py", "call"), Phase.WRITING),
        (("torch/save.py", "look"), Phase.OWN),
    ],
    ids=["own", "outermost", "forward again in backward", "saved in forward", "another function"],
)
def test_the_phase_of_a_stack(stack: tuple[str, ...], phase: Phase) -> None:
    rules = [
        PhaseRule("torch/data.py", Phase.INPUT),
        PhaseRule("torch/nn.py", Phase.FORWARD),
        PhaseRule("torch/back.py", Phase.BACKWARD),
        PhaseRule("torch/save.py", Phase.WRITING, ("save",)),
    ]
    calls = zip(stack[::2], stack[1::2], strict=True)
    lines = [f'File "{file}", line 3 in {function}' for file, function in calls]
    assert (
        phases.phase_of(lines, phases.unpacked(json.loads(json.dumps(phases.packed(rules)))))
        is phase
    )
    status = RankStatus(1, stack=tuple(lines), phase=phase)
    known = {Phase.OWN: "is alive, in "}.get(phase, f"is alive, {phases.WORDS[phase]}, in ")
    assert whereabouts(status) == f"rank 1 {known}{stack[1]}"


def test_the_line_of_the_script() -> None:
    stack = [
        'File "/python/lib.py", line 1 in read',
        'File "<string>", line 2 in made',
        'File "/home/me/train.py", line 31 in load',
    ]
    assert phases.own_line(stack, ["/python/"]) == "train.py:31 in load"
    assert phases.own_line(stack[:2], ["/python/"]) == ""


def test_where_every_rank_waits_each_call_is_told() -> None:
    ranks = {rank: RankStatus(rank, **WAITS) for rank in range(2)}  # type: ignore[arg-type]
    wait = find_standstill(ranks.values())
    assert wait is not None
    error = stuck(wait, ranks, 1800.0)
    assert "rank 0 waits in backward(); rank 1 waits in backward()" in str(error)


@pytest.mark.parametrize(
    ("calls", "waited", "over"),
    [
        (["all_reduce(op='max')", "all_gather()", "all_reduce()"], 61.0, True),
        (["all_reduce(op='max')", "all_gather()", "all_reduce()"], 9.0, False),
        (["all_reduce(op='max')", "all_reduce()", "all_reduce()"], 61.0, False),
        (["send()", "receive()", "all_reduce()"], 61.0, False),
        (["all_reduce()", "all_gather()", ""], 61.0, False),
    ],
)
def test_of_ranks_that_wait_in_different_calls_none_can_go_on(
    calls: list[str], waited: float, *, over: bool
) -> None:
    ranks = [RankStatus(rank, call=call, waited=waited) for rank, call in enumerate(calls)]
    assert none_can_go_on(ranks, 60.0) is over


def test_a_rank_at_the_end_may_wait_as_long_as_others_are_busy_and_no_longer() -> None:
    left = RankStatus(1, call="the end of its training", waited=99.0, patient=True)
    assert find_standstill([RankStatus(0), left]) is None
    stepping = RankStatus(0, call="all_reduce()", waited=99.0)
    assert none_can_go_on([stepping, left], 60.0)
    wait = find_standstill([stepping, left])
    assert wait is not None
    error = str(stuck(wait, {0: stepping, 1: left}, 90.0))
    assert "rank 1 waits in the end of its training" in error
    assert "Leave a loop on all ranks at the same step" in error


def test_a_wait_is_seen_from_another_thread() -> None:
    before = ThreadObserver().look(1.0)
    assert not before.call
    with stall.waiting("barrier()", lambda: [2]):
        seen = ThreadObserver().look(1.0)
        assert (seen.call, seen.ranks) == ("barrier()", (2,))
    assert not ThreadObserver().look(1.0).call


@pytest.mark.parametrize(
    ("does", "pooled", "called"),
    [
        ("held", False, "_held()"),
        ("held", True, "_held()"),
        ("computing in a pool", False, "_held()"),
        ("computing in a pool", True, ""),
        ("busy", False, ""),
        ("one call after another", False, ""),
    ],
)
def test_a_call_that_stands_still_is_a_wait_and_one_that_moves_is_none(
    does: str, pooled: bool, called: str
) -> None:
    """Of the thread that trains, which is the one that made the last step."""
    stall.waits_inside({__file__: ""}, pooled=pooled)
    before = progress.thread, progress.steps
    done, ready = threading.Event(), threading.Event()
    target = {"busy": _busy, "one call after another": _calls}.get(does, _held)
    thread = threading.Thread(target=target, args=(ready, done))
    thread.start()
    if does == "computing in a pool":
        threading.Thread(target=_busy_beside, args=(done,)).start()
    try:
        ready.wait()
        observer = ThreadObserver()
        time.sleep(0.2)
        observer.look(0.2)
        for _ in range(10):  # a machine with much to do may not let anything move for a while
            time.sleep(0.5)
            if (found := observer.look(0.5).call) == called:
                break
        assert found == called
    finally:
        done.set()
        thread.join()
        progress.thread, progress.steps = before
        del activity._inside[__file__]
        activity._pooled.discard(__file__)


def _held(ready: threading.Event, done: threading.Event) -> None:
    lock = threading.Lock()
    lock.acquire()
    opener = threading.Thread(target=lambda: (done.wait(), lock.release()))
    opener.start()
    stall.stepped()
    ready.set()
    lock.acquire()
    opener.join()


def _calls(ready: threading.Event, done: threading.Event) -> None:
    stall.stepped()
    ready.set()
    while not done.is_set():
        _call()


def _call() -> None:
    time.sleep(0.1)


def _busy_beside(done: threading.Event) -> None:
    while not done.is_set():
        sum(range(1000))


def _busy(ready: threading.Event, done: threading.Event) -> None:
    stall.stepped()
    ready.set()
    while not done.is_set():
        sum(range(1000))


def test_a_neighbour_is_read_without_its_help() -> None:
    page = StatusPage(os.memfd_create("stacks"))
    page.write(RankStatus(3, steps=5, call="barrier()", ranks=(1,)), 0)
    neighbour = Neighbour.met(page.address)
    assert neighbour is not None
    said = neighbour.read()
    assert said is not None
    assert RankStatus.unpacked(said) == RankStatus(3, steps=5, call="barrier()", ranks=(1,))
    assert neighbour.state in "RS"
    for fd in (neighbour.fd, neighbour.stacks):
        os.close(fd)


TAKES = """
import signal, sys, time
from dream.stall import stacks
first = stacks.StackWriter()
mine = first.number
heard = []
signal.signal(mine, lambda *_: heard.append(1))
import os
os.kill(os.getpid(), mine)
assert heard == [1], heard
other = first.number
assert other not in (mine, 0, signal.SIGUSR1), other
assert signal.getsignal(mine) is not signal.SIG_DFL
def stands_here():
    print(os.getpid(), other, first.fd, flush=True)
    sum(range(10**12))
stands_here()
"""


def test_a_stack_is_had_of_a_held_interpreter_and_the_scripts_signals_stay_its_own() -> None:
    """A signal that the script takes later is its own; another one serves."""
    with subprocess.Popen([sys.executable, "-c", TAKES], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        pid, number, fd = map(int, one.stdout.readline().split())
        memory = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY)
        try:
            found = stacks.ask(pid, number, memory)
            assert stacks.ask(pid, signal.SIGRTMIN + 4, memory) == [], "it would end of that"
            assert one.poll() is None
        finally:
            os.close(memory)
            one.kill()
    assert found[0].endswith("in stands_here"), found
