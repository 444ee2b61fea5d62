from __future__ import annotations

from pathlib import Path

import pytest

from dream._errors import DreamError
from dream.files import room


def test_what_is_not_there_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, group = tmp_path / "meminfo", tmp_path / "group"
    monkeypatch.setattr(room, "_MEMORY", memory)
    monkeypatch.setattr(room, "_GROUP", str(group))
    room.check_room(tmp_path, 1 << 20)
    memory.write_text("MemTotal: 9000 kB\nMemAvailable: 4096 kB\n")
    room.check_room(tmp_path, 2 << 20)
    with pytest.raises(DreamError, match="3 MB to write, and 2 MB available"):
        room.check_room(tmp_path, 3 << 20)
    for name, text in (("max", "9437184"), ("current", "8388608"), ("stat", "active_file 1048576")):
        Path(f"{group}.{name}").write_text(text)
    room.check_room(tmp_path, 1 << 20)
    with pytest.raises(DreamError, match="and 1 MB available"):
        room.check_room(tmp_path, 2 << 20)


def test_a_folder_is_in_memory_or_none_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    monkeypatch.setattr(room, "_MOUNTS", mounts)
    monkeypatch.setattr(room, "_SHARED", tmp_path)
    assert room.folder_in_memory() is None
    mounts.write_text(f"/dev/sda {tmp_path} ext4 rw 0 0\n")
    assert room.folder_in_memory() is None
    mounts.write_text(f"/dev/sda {tmp_path} ext4 rw 0 0\ntmpfs {tmp_path} tmpfs rw 0 0\n")
    assert room.folder_in_memory() == tmp_path
