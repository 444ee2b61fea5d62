"""Files: refused before anything runs where they cannot be written, and written whole."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from dream import ConfigurationError, DreamError
from dream.files.whole import check_output, whole, write_json, write_whole


@pytest.mark.parametrize("name", ["/proc/out.json", "absent/out.json", ".", "a" * 300])
def test_a_file_that_cannot_be_written_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"A file cannot be written there.*--json"):
        check_output("--json", Path(name))


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(ConfigurationError, match="A file cannot be written there"):
        check_output("--json", link)


def test_checking_leaves_nothing(tmp_path: Path) -> None:
    check_output("--json", tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_plain_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe, link, plain = tmp_path / "pipe", tmp_path / "link", tmp_path / "plain"
    os.mkfifo(pipe)
    link.symlink_to(plain)
    read: list[str] = []
    reader = Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    for path in (pipe, link):
        check_output("--json", path)
        write_json(path, {"a": 1})
    reader.join(10)
    assert (read, plain.read_text()) == (['{\n  "a": 1\n}\n'], '{\n  "a": 1\n}\n')
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_a_disk_without_room_is_told_in_a_line() -> None:
    with pytest.raises(DreamError, match=r"could not be written.*/dev/full \(No space left"):
        write_json(Path("/dev/full"), {"a": 1})


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def half(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise RuntimeError

    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(RuntimeError):
        write_whole(path, half)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_it_is_on_the_disk_before_it_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the file, then the rename, then the folder that tells of the rename."""
    calls: list[str] = []
    path, synced, renamed = tmp_path / "out", os.fsync, os.replace

    def sync(held: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(held).st_mode) else "file")
        synced(held)

    def rename(part: Path, place: Path) -> None:
        calls.append("rename")
        renamed(part, place)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    write_whole(path, lambda file: file.write(b"all"))
    assert calls == ["file", "rename", "folder"]


def test_the_mode_is_that_of_the_file_replaced(tmp_path: Path) -> None:
    old, new, plain = tmp_path / "old", tmp_path / "new", tmp_path / "plain"
    old.write_text("before")
    old.chmod(0o640)
    plain.write_text("as any other")
    for path in (old, new):
        write_whole(path, lambda file: file.write(b"all"))
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert new.stat().st_mode == plain.stat().st_mode


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    there, absent = tmp_path / "other" / "there", tmp_path / "other" / "absent"
    there.write_text("before")
    for target in (there, absent):
        link, far = tmp_path / f"to-{target.name}", tmp_path / f"far-{target.name}"
        link.symlink_to(target)
        far.symlink_to(link)
        write_whole(far, lambda file: file.write(b"all"))
        assert far.is_symlink()
        assert link.is_symlink()
        assert target.read_text() == "all"


def test_two_writers_of_one_path_do_not_meet(tmp_path: Path) -> None:
    """Each writes beside the place under a name of its own, even in one process."""
    path = tmp_path / "out.keras"
    with whole(path) as one, whole(path) as two:
        assert one != two
        assert one.parent == two.parent == tmp_path
        assert one.name.endswith("out.keras")
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_stays_a_device() -> None:
    write_whole("/dev/null", lambda file: file.write(b"all"))
    assert Path("/dev/null").is_char_device()


def test_a_name_as_long_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 249 + ".keras")
    write_whole(path, lambda file: file.write(b"all"))
    assert path.read_bytes() == b"all"


@pytest.mark.parametrize("name", ["absent/out", "."])
def test_errors_name_the_path_that_was_asked_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError, match=str(tmp_path / name).rstrip(".")) as told:
        write_whole(tmp_path / name, lambda file: file.write(b"all"))
    assert ".part" not in str(told.value)


@pytest.fixture
def little_room() -> Iterator[None]:
    """As a disk that is full after 64 kB: writing more fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("little_room")
def test_a_full_disk_leaves_the_old_file_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before")
    with pytest.raises(OSError, match=r"an existing file is unchanged.*a disk of \d+ MB") as told:
        write_whole(path, lambda file: file.write(b"a" * (1 << 20)))
    assert str(path) in str(told.value)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
