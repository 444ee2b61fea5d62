"""Whom the others wait for, from how often each was seen to stand still."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from dream.stall import activity, phases, stacks, stragglers
from dream.stall.activity import ThreadObserver
from dream.stall.phases import Phase, PhaseRule
from dream.stall.status import RankStatus


@pytest.mark.parametrize(
    ("looks", "rank"),
    [
        pytest.param({0: (1000, 500), 1: (1000, 10)}, 1, id="one of two"),
        pytest.param({0: (900, 400), 1: (1000, 450), 2: (1000, 20)}, 2, id="one of three"),
        pytest.param({0: (1000, 500), 1: (1000, 450)}, None, id="all are late by turns"),
        pytest.param({0: (1000, 190), 1: (1000, 0)}, None, id="under a fifth"),
        pytest.param({0: (25, 10), 1: (25, 2)}, None, id="a third, by chance perhaps"),
        pytest.param({0: (25, 24), 1: (25, 0)}, 1, id="most of few looks"),
        pytest.param({0: (10, 10), 1: (1000, 0)}, None, id="too few looks"),
        pytest.param({0: (1000, 900)}, None, id="alone"),
    ],
)
def test_who_is_waited_for(looks: dict[int, tuple[int, int]], rank: int | None) -> None:
    found = stragglers.find([RankStatus(one, looked=of, stood=n) for one, (of, n) in looks.items()])
    assert (None if found is None else found.rank) == rank


@pytest.mark.parametrize(
    ("spent", "words"),
    [
        ({"forward": 600, "input": 300}, "reading input"),  # the other is in forward as often
        ({"forward": 850, "input": 50}, "in forward"),
        ({"own code": 900}, "in the script's own code"),
    ],
)
def test_what_is_said(spent: dict[str, int], words: str) -> None:
    """The phase is the one that the others are in less often."""
    zero = RankStatus(0, looked=1000, stood=500, spent={"forward": 500})
    found = stragglers.find([zero, RankStatus(1, looked=1000, stood=100, spent=spent)])
    assert found is not None
    told = found.told(250.0, over=True)
    assert told.startswith("rank 1 was waited for: the others stood still for it 40% of the time,")
    assert f"100 of 250 s, while it was {words}. `dream profile`" in told


def test_the_phase_that_is_not_known_is_not_said() -> None:
    zero, one = (RankStatus(rank, looked=99, stood=90 - 90 * rank) for rank in (0, 1))
    found = stragglers.find([zero, one])
    assert found is not None
    assert "of 99 s. `dream profile`" in found.told(99.0, over=False)


def test_a_thread_stands_still_in_a_call_and_not_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    free, here = threading.Event(), threading.Event()

    def wait() -> None:
        here.set()
        free.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    here.wait()
    monkeypatch.setattr(activity.progress, "thread", thread.ident)
    try:
        assert stragglers.look() is not None
        monkeypatch.setitem(activity._inside, threading.__file__, "a call")
        end = time.monotonic() + 60  # other threads of this process may run now and then
        while stragglers.look() is not None:
            assert time.monotonic() < end
        spinning = threading.Thread(target=lambda: _spin(free))
        spinning.start()
        assert any(stragglers.look() is not None for _ in range(1000))
    finally:
        free.set()
        thread.join()


def test_what_a_framework_calls_elsewhere_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training thread stands in a call that may wait for ranks, and a function of the script,
    which the framework calls in a thread of its own, does something else."""
    free, waits, called = threading.Event(), threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        free.wait()

    def read() -> None:
        called.set()
        while not free.is_set():
            time.sleep(0.01)

    scope: dict[str, Callable[[Callable[[], None]], None]] = {}
    exec(compile("def call(function): function()", "/framework/ops.py", "exec"), scope)
    trained = threading.Thread(target=wait)
    trained.start()
    waits.wait()
    monkeypatch.setattr(activity.progress, "thread", trained.ident)
    monkeypatch.setitem(activity._inside, threading.__file__, "a call")
    monkeypatch.setattr(activity, "_callers", {"/framework/ops.py"})
    monkeypatch.setattr(phases, "_rules", {PhaseRule("/framework/ops.py", Phase.INPUT): None})
    framework = threading.Thread(target=lambda: scope["call"](read))
    try:
        assert activity.called_frame() is None
        framework.start()
        called.wait()
        assert stragglers.look() is Phase.INPUT
        assert ThreadObserver().look(1.0).call == ""
        status = RankStatus(0, called=tuple(stacks.own(activity.called_frame()))).seen(["in fit"])
        assert status.phase is Phase.INPUT
        assert "in read" in status.stack[0]
        assert status.stack[-1] == "in fit"
        monkeypatch.setitem(activity._inside, __file__, "a call of a wire")
        assert activity.called_frame() is None  # a wire's own function waits for ranks
    finally:
        free.set()
        trained.join()
        framework.join()


def test_an_import_is_not_what_its_file_is_for() -> None:
    rules = [PhaseRule("/torch/optim/", Phase.OPTIMIZER)]
    stack = ['File "/torch/optim/sgd.py", line 3 in <module>', 'File "train.py", line 1 in main']
    assert phases.phase_of(stack, rules) is Phase.OWN
    assert phases.phase_of([stack[0].replace("<module>", "step")], rules) is Phase.OPTIMIZER


def _spin(free: threading.Event) -> None:
    while not free.is_set():
        sum(range(1000))
