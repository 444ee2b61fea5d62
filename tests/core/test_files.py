"""Files that the command line names: refused before anything runs where they cannot be written."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from dream import ConfigurationError, DreamError
from dream._files import check_output, write_json, write_whole


@pytest.mark.parametrize("name", ["/proc/out.json", "absent/out.json", ".", "a" * 300])
def test_a_file_that_cannot_be_written_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"No file can be written there.*--json"):
        check_output("--json", Path(name))


def test_a_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(ConfigurationError, match="No file can be written there"):
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
