"""Whom the others wait for, from how often each was seen to stand still."""

from __future__ import annotations

import threading
import time

import pytest

from dream.stall import activity, stragglers


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
    found = stragglers.find(looks)
    assert (None if found is None else found.rank) == rank


def test_what_is_said() -> None:
    found = stragglers.find({0: (1000, 500), 1: (1000, 100)})
    assert found is not None
    told = found.told(250.0, over=True)
    assert told.startswith("rank 1 was waited for: the others stood still for it 40% of the time,")
    assert "100 of 250 s" in told


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
        assert not stragglers.stands_still()
        monkeypatch.setitem(activity._inside, threading.__file__, "a call")
        end = time.monotonic() + 60  # other threads of this process may run now and then
        while not stragglers.stands_still():
            assert time.monotonic() < end
        spinning = threading.Thread(target=lambda: _spin(free))
        spinning.start()
        assert any(not stragglers.stands_still() for _ in range(1000))
    finally:
        free.set()
        thread.join()


def _spin(free: threading.Event) -> None:
    while not free.is_set():
        sum(range(1000))
