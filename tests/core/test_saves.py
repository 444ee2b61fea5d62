"""Which rank's file stays, and who waits for whom. The order of events is the store's: every step
of the account passes through it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from dream import WorkerFailed
from dream.files import store as store_module
from dream.files.saves import First, Other, SavedPaths
from dream.files.store import PatientStore

SECONDS = 120.0


class Values:
    """A store in this process. seen: told of each question before its answer is given."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.seen: Callable[[str], None] = lambda _: None
        self.asked: list[str] = []

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def find(self, key: str) -> bytes | None:
        found = self.values.get(key)
        self.asked.append(key)
        self.seen(key)
        return found

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


class Gone:
    """A store that went with rank 0."""

    def put(self, key: str, value: bytes) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    def find(self, key: str) -> bytes | None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    def delete(self, key: str) -> None:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")


class Slow:
    """A store whose server stands still, for some questions. clock: goes on with each."""

    def __init__(self, questions: int) -> None:
        self.left, self.now = questions, 0.0

    def find(self, key: str) -> bytes | None:
        if self.left:
            self.left -= 1
            self.now += 10.0
            raise TimeoutError("timed out")
        return b"there"

    def put(self, key: str, value: bytes) -> None:
        self.find(key)

    def delete(self, key: str) -> None:
        self.find(key)


def test_a_store_that_stands_still_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher may be stopped, or rank 0 hold its interpreter: that is no reason to fail."""
    slow = Slow(20)
    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=lambda: slow.now, sleep=id))
    assert PatientStore(slow, 1800.0).find("key") == b"there"
    slow.left = 1000
    with pytest.raises(WorkerFailed):
        PatientStore(slow, 1800.0).find("key")


@pytest.fixture
def store() -> Values:
    return Values()


@pytest.fixture
def first(store: Values) -> First:
    return First(2, PatientStore(store), SECONDS)


@pytest.fixture
def other(store: Values) -> Other:
    return Other(1, PatientStore(store), SECONDS)


def save(saves: SavedPaths, path: Path, text: str) -> None:
    saves.save(path, lambda part: part.write_text(text))


def in_thread(call: Callable[[], None]) -> Thread:
    thread = Thread(target=call, daemon=True)
    thread.start()
    return thread


def test_a_path_of_its_own_is_written_by_a_rank(tmp_path: Path, other: Other) -> None:
    own = tmp_path / "rank1.pt"
    save(other, own, "its own")
    other.before_reading(own)
    assert own.read_text() == "its own"


def test_what_rank_0_has_saved_stays(tmp_path: Path, first: First, other: Other) -> None:
    path, link = tmp_path / "both.pt", tmp_path / "link.pt"
    link.symlink_to(path)
    save(first, path, "rank 0's")
    save(other, path, "another's")
    save(other, link, "another's")
    assert path.read_text() == "rank 0's"


def test_rank_0s_stays_where_another_came_first(tmp_path: Path, first: First, other: Other) -> None:
    path = tmp_path / "both.pt"
    save(other, path, "another's")
    save(first, path, "rank 0's")
    save(other, path, "another's")
    assert path.read_text() == "rank 0's"
    assert list(tmp_path.iterdir()) == [path]


def test_rank_0s_stays_where_the_other_has_just_looked(
    tmp_path: Path, store: Values, first: First, other: Other
) -> None:
    """The other rank is held between its last look and its rename, until rank 0 has said whose
    the path is and is about to rename too."""
    path, looked, waits = tmp_path / "both.pt", Event(), Event()
    ranks: list[Thread] = []

    def held(key: str) -> None:
        about_to_put = any(k.endswith(".1") for k in list(store.values))
        if key.endswith(".0") and about_to_put and not looked.is_set():
            looked.set()
            ranks.append(in_thread(lambda: save(first, path, "rank 0's")))
            assert waits.wait(SECONDS)
        if key.endswith(".1"):
            waits.set()

    store.seen = held
    save(other, path, "another's")
    ranks[0].join(SECONDS)
    assert path.read_text() == "rank 0's"


def test_a_rank_that_finds_rank_0_at_its_last_look_leaves_its_file_out(
    tmp_path: Path, first: First, other: Other
) -> None:
    path = tmp_path / "both.pt"

    def late(part: Path) -> None:
        part.write_text("another's")
        save(first, path, "rank 0's")

    other.save(path, late)
    assert path.read_text() == "rank 0's"


@pytest.mark.parametrize("before", [0, 2])
def test_reading_waits_for_as_many_saves(
    tmp_path: Path, store: Values, first: First, other: Other, before: int
) -> None:
    """Where rank 0 saved the path before, and where this rank's first file was put there."""
    path, asked, order = tmp_path / "both.pt", Event(), list[str]()
    for _ in range(before):
        save(first, path, "before")
        save(other, path, "another's")

    def slow(part: Path) -> None:
        part.write_text("the last")
        reader.start()
        assert asked.wait(SECONDS)
        order.append("saved")

    def reads() -> None:
        other.before_reading(path)
        order.append(path.read_text())

    def answered(_: str) -> None:
        if len(store.asked) > so_far + 5:
            asked.set()

    save(other, path, "another's")
    so_far, store.seen = len(store.asked), answered
    reader = Thread(target=reads, daemon=True)
    first.save(path, slow)
    reader.join(SECONDS)
    assert order == ["saved", "the last"]


def test_a_save_of_rank_0s_that_fails_is_over(tmp_path: Path, first: First, other: Other) -> None:
    path = tmp_path / "both.pt"
    save(first, path, "whole")
    save(other, path, "another's")
    with pytest.raises(ZeroDivisionError):
        first.save(path, lambda _: 1 // 0)
    save(other, path, "another's")
    other.before_reading(path)
    assert path.read_text() == "whole"


def test_a_rank_0_that_was_started_again_goes_on_counting(
    tmp_path: Path, store: Values, first: First, other: Other
) -> None:
    path = tmp_path / "both.pt"
    for saves in (first, other, other):
        save(saves, path, "something")
    save(First(2, PatientStore(store), SECONDS), path, "again")
    other.before_reading(path)


def test_what_rank_0_never_saves_is_named(tmp_path: Path, store: Values) -> None:
    other, path = Other(1, PatientStore(store), 0.01), tmp_path / "both.pt"
    save(First(2, PatientStore(store), SECONDS), path, "once")
    for _ in range(2):
        save(other, path, "another's")
    with pytest.raises(WorkerFailed, match=r"Rank 0 has not saved.*saved 2 times") as told:
        other.before_reading(path)
    assert told.value.rank == 0


def test_nobody_is_asked_for_files_that_were_not_saved(
    tmp_path: Path, store: Values, other: Other
) -> None:
    other.before_reading(tmp_path / "sample0.pt")
    save(other, tmp_path / "rank1.pt", "its own")
    asked = len(store.asked)
    other.before_reading(tmp_path / "sample1.pt")
    assert len(store.asked) == asked


def test_paths_alike_are_looked_for_once(tmp_path: Path, store: Values, other: Other) -> None:
    save(other, tmp_path / "rank1-epoch0.pt", "its own")
    asked = len(store.asked)
    save(other, tmp_path / "rank1-epoch1.pt", "its own")
    assert len(store.asked) == asked + 2


def test_rank_0_that_has_left_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("dream"), "propagate", True)
    other, new, old = (
        Other(1, PatientStore(Gone()), SECONDS),
        tmp_path / "new.pt",
        tmp_path / "old.pt",
    )
    old.write_text("perhaps rank 0's")
    for path in (new, new, old):
        save(other, path, "its own")
    other.before_reading(new)
    assert (new.read_text(), old.read_text()) == ("its own", "perhaps rank 0's")
    assert f"rank 1: rank 0 has exited, so it is unknown which rank wrote {old}: " in caplog.text
    with pytest.raises(WorkerFailed, match="Rank 0, or the launcher, is gone"):
        other.before_reading(old)
