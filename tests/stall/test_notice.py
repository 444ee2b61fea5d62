"""What a process says of itself in memory: read by its number, and by nobody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dream.stall import notice as notices


def said(pid: int) -> list[object]:
    found = []
    for fd in notices.opened(pid, "dream-test"):
        found.append(notices.facts_of(pid, fd))
        os.close(fd)
    return found


def test_what_is_said_last_is_read_until_it_is_closed() -> None:
    notice = notices.ProcessNotice("dream-test")
    assert said(os.getpid()) == [None]
    notice.write({"long": "x" * 1000})
    notice.write({"ranks": [1]})
    (facts,) = said(os.getpid())
    assert isinstance(facts, dict)
    assert facts["ranks"] == [1]
    assert "long" not in facts
    notice.close()
    notice.close()
    assert said(os.getpid()) == []


def test_a_child_that_inherits_the_memory_is_not_who_wrote_it() -> None:
    notice = notices.ProcessNotice("dream-test")
    notice.write({"ranks": []})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    try:
        assert said(child) == [None]
    finally:
        os.write(write, b"!")
        os.waitpid(child, 0)
        notice.close()


def test_another_version_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    notice = notices.ProcessNotice("dream-test")
    notice.write({})
    monkeypatch.setattr(notices, "_FORMAT", 2)
    assert said(os.getpid()) == [None]
    notice.close()


def test_a_process_that_is_gone_says_nothing() -> None:
    gone = next(n for n in range(2**22, 2**22 + 9) if not Path(f"/proc/{n}").exists())
    assert list(notices.opened(gone, "dream-test")) == []
