"""Files that several ranks open to write: one of the ranks tells it, whichever comes first. Ranks
are told apart by their process's place only, so two of them can be in one process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest

from dream._topology import Cluster
from dream.files import opened
from dream.files.opened import Watch
from dream.files.store import PatientStore

WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Values:
    """A store in this process. after: told of what is put, before the next thing happens."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.after: Callable[[str], None] = lambda _: None

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value
        self.after(key)

    def find(self, key: str) -> bytes | None:
        return self.values.get(key)

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


@pytest.fixture
def store() -> Values:
    return Values()


@pytest.fixture(autouse=True)
def _heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("dream"), "propagate", True)


def rank(number: int, store: Values) -> Watch:
    place = Cluster(rank=number, local_rank=number, world_size=3, local_world_size=3)
    return Watch(place, lambda: PatientStore(store))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_it_is_told_once(
    order: tuple[int, ...], store: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    watches = [rank(number, store) for number in range(3)]
    for number in order:
        for _ in range(2):
            watches[number].opened(str(tmp_path / "one.npy"), "wb", WRITE)
    first, second, _ = order
    (text,) = told(caplog)
    assert text.startswith(f"ranks {min(first, second)}, {max(first, second)} write one file")
    assert str(tmp_path / "one.npy") in text


def test_ranks_that_look_at_the_same_time_tell_it_once(
    store: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rank 1 opens the file once rank 0 has said so, and rank 0 looks once rank 1 has too."""
    path, first, second = str(tmp_path / "one.npy"), rank(0, store), rank(1, store)
    both, ranks = Event(), list[Thread]()

    def meanwhile(key: str) -> None:
        if key.endswith(".1"):
            both.set()
        elif not both.is_set():
            ranks.append(Thread(target=second.opened, args=(path, "w", WRITE), daemon=True))
            ranks[0].start()
            assert both.wait(120)

    store.after = meanwhile
    first.opened(path, "w", WRITE)
    ranks[0].join(120)
    first.tell_of_others()
    assert len(told(caplog)) == 1


def test_rank_0_tells_what_another_found(
    store: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        rank(number, store).opened(str(tmp_path / "one.npy"), "w", WRITE)
    rank(0, store).tell_of_others()
    assert len(told(caplog)) == 2
    assert len(set(told(caplog))) == 1


def test_rank_0_tells_what_others_found_besides_its_own(
    store: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It came first to one of the files, and later to the other."""
    first, second = rank(0, store), rank(1, store)
    for path, order in (("one", (first, second)), ("two", (second, first))):
        for watch in order:
            watch.opened(str(tmp_path / path), "w", WRITE)
    before = len(told(caplog))
    first.tell_of_others()
    first.tell_of_others()
    (text,) = told(caplog)[before:]
    assert str(tmp_path / "one") in text


def test_what_is_appended_is_there_once_for_each_rank(
    store: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        watch = rank(number, store)
        watch.opened(str(tmp_path / "log"), "a", os.O_WRONLY | os.O_APPEND)  # shared by many
        watch.opened(str(tmp_path / "table.csv"), "a", os.O_WRONLY | os.O_APPEND)
    assert "what is appended is there once for each" in "".join(told(caplog))


def test_what_harms_nobody_is_left_alone(
    store: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading, files of dream's own (opened by flags), hidden folders, devices."""
    for number in (0, 1):
        watch = rank(number, store)
        watch.opened(str(tmp_path / "read"), "r", os.O_RDONLY)
        watch.opened(str(tmp_path / "lock"), None, os.O_RDWR | os.O_CREAT)
        watch.opened(str(tmp_path / ".cache" / "kernel"), "w", WRITE)
        watch.opened("/dev/null", "w", WRITE)
        watch.opened(3, "w", WRITE)
    assert not store.values
    assert not told(caplog)


def test_what_is_opened_is_looked_at_until_the_end_of_the_block(
    store: Values, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rank(0, store)
    monkeypatch.setattr(opened, "_of", lambda _: made)
    watch = opened.watch(Cluster())
    (tmp_path / "inside").write_text("seen")
    watch.rest()
    (tmp_path / "after").write_text("not seen")
    assert len(store.values) == 1


def test_a_table_that_each_appends_to_is_told(
    store: Values, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        rank(number, store).opened(str(tmp_path / "losses.csv"), "a", os.O_WRONLY | os.O_APPEND)
    (text,) = told(caplog)
    assert "losses.csv" in text
    assert "what is appended is there once for each" in text
