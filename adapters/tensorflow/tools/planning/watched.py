"""What TensorFlow's allocator gave during a step, read off the trace that its profiler writes.

Only the BFC allocator tells; on CPUs it is used where TF_CPU_ALLOCATOR_USE_BFC is set before
TensorFlow starts. Bytes are those that were asked for: what the allocator rounds up, and keeps
between tensors, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from dream._errors import WorkerFailed

STEP = "dream.tools.plan.step"
_CAME, _WENT = "MemoryAllocation", "MemoryDeallocation"


@final
class Watch:
    """peak: bytes at most in the last step, once the watch is over."""

    def __init__(self) -> None:
        self.peak = 0

    def step(self) -> Any:
        """A context that a step runs in."""
        return tf.profiler.experimental.Trace(STEP)


@contextmanager
def watching() -> Iterator[Watch]:
    """Tensors that are made inside count."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    watch = Watch()
    with TemporaryDirectory(prefix="dream-plan-") as folder:
        tf.profiler.experimental.start(folder, options)
        yield watch
        tf.profiler.experimental.stop()
        files = sorted(Path(folder).glob("plugins/profile/*/*.xplane.pb"))
        watch.peak = read(files[0].read_bytes())


def read(trace: bytes) -> int:
    """The peak of the last step in a trace."""
    events = sorted(_events(trace), key=lambda event: event[0])
    steps = [(at, at + span) for at, span, name, _ in events if name == STEP]
    memory = [event for event in events if event[2] in (_CAME, _WENT)]
    if not steps or not memory:
        raise WorkerFailed(
            "TensorFlow's profiler told nothing of memory. Received: "
            f"{len(steps)} steps, {len(memory)} allocations. Set TF_CPU_ALLOCATOR_USE_BFC=1."
        )
    begin, end = steps[-1]
    sizes: dict[int, int] = {}
    held = most = 0
    for at, _, name, (address, size) in memory:
        if at > end:
            break
        if name == _CAME:
            sizes[address] = size
            held += size
        else:
            held -= sizes.pop(address, 0)
        if at >= begin:
            most = max(most, held)
    return most


def _events(trace: bytes) -> Iterator[tuple[int, int, str, tuple[int, int]]]:
    """(picoseconds, how many, name, (address, bytes asked for))."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(trace)
    for plane in space.planes:
        names = {key: value.name for key, value in plane.event_metadata.items()}
        stats = {key: value.name for key, value in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = names[event.metadata_id]
                if name in (STEP, _CAME, _WENT):
                    at = line.timestamp_ns * 1000 + event.offset_ps
                    yield at, event.duration_ps, name, _sized(event, stats)


def _sized(event: Any, stats: dict[int, str]) -> tuple[int, int]:
    told = {stats[stat.metadata_id]: stat.int64_value or stat.uint64_value for stat in event.stats}
    return told.get("addr", 0), told.get("requested_bytes", 0)
