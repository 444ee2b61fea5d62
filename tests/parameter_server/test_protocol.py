"""Somebody who knows the way in to a server still makes nothing there but values, and takes no
memory by words alone."""

from __future__ import annotations

import pickle
import resource
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy_job import SIZE, Job, job

from dream import DreamError, WorkerFailed
from dream._plain import Garbled, pack
from dream.parameter_server.leases import Epoch
from dream.parameter_server.protocol import (
    Frame,
    FrameChannel,
    FrameKind,
    Purpose,
    PushWords,
    Registration,
    ReturnedLeases,
    connect,
    pack_error,
    unpack_error,
)

EPOCH = Epoch(samples=12, batch_size=4, drop_last=False)
HEAD = struct.Struct("<B3xI6q2dQ")


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


@pytest.fixture
def running() -> Iterator[Job]:
    """A job of two workers of which one trains on, and the other is ours to play."""
    with job(workers=2) as served:
        honest = served.worker(0)
        yield served
        honest.epoch(0, EPOCH)
        assert sorted(honest.seen) == list(range(EPOCH.samples))
        honest.client.leave()


def inside(running: Job, purpose: Purpose = "work") -> FrameChannel:
    channel = connect(running.place(1), running.roles.coordinator, purpose, 100)
    channel.settimeout(100)
    return channel


def answered(channel: FrameChannel) -> Frame | None:
    """None where the connection was closed."""
    try:
        frame = channel.receive()
        while frame.kind == FrameKind.WAIT:
            frame = channel.receive()
    except OSError:
        return None
    return frame


def test_a_pickle_makes_nothing(running: Job, tmp_path: Path) -> None:
    file = tmp_path / "made"
    bomb = pickle.dumps(Bomb(file))
    also = pickle.dumps(((), bomb, b""))
    spec = pack((((0, (SIZE,)),), "<f4", bomb, bomb))
    for kind in (FrameKind.REGISTER, FrameKind.PUSH, FrameKind.SETTLE, FrameKind.RELEASE):
        for text in (bomb, also, spec):
            channel = inside(running)
            channel.send(Frame(kind, text=text))
            channel.send(Frame(FrameKind.REPORT))
            told = answered(channel)
            assert told is None or told.kind in (FrameKind.ERROR, FrameKind.ANSWER)
            channel.close()
    assert not file.exists()


def test_an_error_that_is_a_pickle_makes_nothing_on_a_worker(tmp_path: Path) -> None:
    with pytest.raises(Garbled):
        unpack_error(pickle.dumps(Bomb(tmp_path / "made")))
    assert not (tmp_path / "made").exists()


def test_errors_go_by_name_among_dreams_own() -> None:
    for kind in (WorkerFailed, DreamError, Garbled):
        back = unpack_error(pack_error(kind("words")))
        assert isinstance(kind("words"), type(back))
        assert str(back) == "words"
    for name in ("SystemExit", "annotations", "TYPE_CHECKING", "re", "unknown"):
        assert type(unpack_error(pack((name, "words")))) is WorkerFailed


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.ASK, (0, 0, -1, 0, 5, 0)), Frame(FrameKind.ASK, (0, 0, -1, 0, -5, 4)),
        Frame(FrameKind.PUSH), Frame(FrameKind.PUSH, (9, 9, 0, 0, 1, 1)), Frame(77),
        Frame(FrameKind.REGISTER),
        Frame(FrameKind.REGISTER, text=pack((((0, (1 << 40,)),), "<f4", b"", b""))),
        Frame(FrameKind.REGISTER, text=pack((((0, (SIZE,)),), "O", b"", b""))),
        Frame(FrameKind.SETTLE, text=pack(((0, 0), ("a",)))),
        Frame(FrameKind.RELEASE, text=pack(3)),
    ],
)  # fmt: skip
def test_frames_that_make_no_sense_are_told_off(running: Job, frame: Frame) -> None:
    channel = inside(running)
    channel.send(frame)
    told = answered(channel)
    assert told is None or told.kind == FrameKind.ERROR
    channel.close()


def test_sizes_that_are_only_claimed_take_no_memory(running: Job) -> None:
    """A gigabyte of words and a terabyte of numbers, on every kind of connection."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    heads = [
        HEAD.pack(kind, length, *[0] * 6, 0.0, 0.0, size)
        for kind in (
            FrameKind.REGISTER,
            FrameKind.PUSH,
            FrameKind.ASK,
            FrameKind.BEAT,
            FrameKind.STATE,
        )
        for length, size in ((1 << 30, 0), (0, 1 << 40))
    ]
    purposes: tuple[Purpose, ...] = ("work", "beat")
    channels = []
    for head in heads:
        for purpose in purposes:
            channel = inside(running, purpose)
            channel._connection.sendall(head + bytes(1000))
            channels.append(channel)
    threads = threading.active_count()
    for channel in channels:
        channel.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
    assert threads < 100


def test_a_gradient_of_another_size_closes_the_connection(running: Job) -> None:
    channel = inside(running)
    said = Registration(((0, (SIZE,)),), "<f4", pack(0.5), b"")
    channel.send(Frame(FrameKind.REGISTER, text=said.packed()))
    told = answered(channel)
    assert told is not None
    assert told.kind == FrameKind.ANSWER
    channel.receive_into(memoryview(bytearray(told.size)))
    channel.send(Frame(FrameKind.PUSH), np.zeros(SIZE + 1, np.float32).data.cast("B"))
    assert answered(channel) is None
    channel.close()


def test_words_come_back_as_they_were() -> None:
    registration = Registration(((0, (2, 3)), (1, ())), "<f8", b"spec", b"rest")
    assert Registration.of(registration.packed()) == registration
    assert registration.nbytes == 56
    assert PushWords.of(PushWords().packed(), 5) == PushWords()
    pushed = PushWords((1, 2), b"settings", bytes(5))
    assert PushWords.of(pushed.packed(), 5) == pushed
    with pytest.raises(Garbled):
        PushWords.of(pushed.packed(), 4)
    returned = ReturnedLeases((0, 1), (5, 6))
    assert ReturnedLeases.of(returned.packed()) == returned
