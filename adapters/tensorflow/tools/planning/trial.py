"""Train a Keras model for real, and watch what TensorFlow's allocator gives, what goes to its
collectives, and time.

Only the BFC allocator tells; on CPUs it is used where TF_CPU_ALLOCATOR_USE_BFC is set before
TensorFlow starts. Bytes are those that were asked for: what the allocator rounds up, and keeps
between tensors, is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import dream
from dream._errors import WorkerFailed
from dream._patches import Patches
from dream._strategy import Strategy
from dream.adapters.tensorflow.collectives import Collectives
from dream.adapters.tensorflow.tools.planning.example import KerasExample, real
from dream.tools.plan.asked import Optimizer
from dream.tools.plan.readings import Rates, Trial, TrialJob, median_seconds, step_seconds

_COUNTED = ("all_reduce", "all_gather", "all_to_all", "broadcast")


@final
class Counts:
    """Bytes given since `begin`, by collective: of each that ran, not of each that was traced."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._given = {
                name: tf.Variable(0, dtype=tf.int64, trainable=False) for name in _COUNTED
            }
        self._before: Mapping[str, int] = defaultdict(int)

    def begin(self) -> None:
        self._before = self._now()

    def given(self) -> dict[str, int]:
        return {
            name: now - self._before[name]
            for name, now in self._now().items()
            if now > self._before[name]
        }

    def add(self, name: str, tensors: Any) -> None:
        for tensor in tf.nest.flatten(tensors):
            self._given[name].assign_add(tf.size(tensor, tf.int64) * tensor.dtype.size)

    def _now(self) -> dict[str, int]:
        return {name: int(value) for name, value in self._given.items()}


@contextmanager
def counting() -> Iterator[Counts]:
    """What is traced inside counts whenever it runs."""
    counts = Counts()
    with Patches() as patches:
        for name in _COUNTED:
            own = getattr(Collectives, name)
            patches.replace(Collectives, name, _counted(own, name, counts))
        yield counts


def _counted(own: Callable[..., Any], name: str, counts: Counts) -> Callable[..., Any]:
    @wraps(own)
    def call(self: Any, buffers: Any, *args: Any) -> Any:
        counts.add(name, buffers)
        return own(self, buffers, *args)

    return call


STEP = "dream.tools.plan.step"
_CAME, _WENT = "MemoryAllocation", "MemoryDeallocation"


@final
class AllocatorWatch:
    """Watches what TensorFlow's allocator has in use.

    peak: bytes at most in the last step, once the watch is over.
    """

    def __init__(self) -> None:
        self.peak = 0

    def step(self) -> Any:
        """Return a context that a step runs in."""
        return tf.profiler.experimental.Trace(STEP)


@contextmanager
def watching() -> Iterator[AllocatorWatch]:
    """Tensors that are made inside count."""
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
    )
    watch = AllocatorWatch()
    with TemporaryDirectory(prefix="dream-plan-") as folder:
        tf.profiler.experimental.start(folder, options)
        yield watch
        tf.profiler.experimental.stop()
        files = sorted(Path(folder).glob("plugins/profile/*/*.xplane.pb"))
        watch.peak = read_trace(files[0].read_bytes())


def read_trace(trace: bytes) -> int:
    """Return the peak of the last step in a trace."""
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


_WARM = 8


def run_trial(function: Callable[[], Any], job: TrialJob) -> Trial:
    """Train, as this rank's part of a measured run."""
    strategy = dream.strategy(framework="tensorflow")
    with strategy, counting() as counts, watching() as watch:
        found = real(function, job.training)
        step = strategy.train_step(found.model, found.loss, _optimizer(job.training.optimizer))
        batch = _share(found, job, strategy)
        each = []
        for _ in range(_WARM):
            counts.begin()
            with watch.step():
                float(step(*batch))
            each.append(counts.given())
        given = min(each, key=lambda one: sum(one.values()))  # the ranks compare after some steps
    return Trial(watch.peak, given, step_seconds(lambda: float(step(*batch)), strategy, job.steps))


def _optimizer(name: Optimizer) -> Any:
    if name in ("sgd", "momentum"):
        return keras.optimizers.SGD(momentum=0.9 if name == "momentum" else 0.0)
    return keras.optimizers.Adam() if name == "adam" else keras.optimizers.AdamW()


def _share(found: KerasExample, job: TrialJob, strategy: Strategy) -> tuple[Any, ...]:
    place = strategy.topology
    first, last = job.share(place.rank, place.world_size)
    inputs, target = found.specs(last - first)
    arrays = [np.zeros(x.shape, x.dtype.as_numpy_dtype) for x in inputs]
    y = np.zeros(last - first) if target is None else np.zeros(target.shape, target.dtype.name)
    return (*arrays, y)


_WIDTH = 512
_LARGE = 4 << 20
_LAYERS = 20


def measure_rates(dtype: str) -> Rates:
    """dtype: as TensorFlow spells it."""
    a = tf.cast(tf.random.normal((_WIDTH, _WIDTH)), dtype)
    image = tf.cast(tf.random.normal((8, 32, 32, 32)), dtype)
    kernel = tf.cast(tf.random.normal((3, 3, 32, 64)), dtype)
    x = tf.random.normal((_LARGE,))
    product = _seconds(lambda: tf.matmul(a, a))
    convolved = _seconds(lambda: tf.nn.conv2d(image, kernel, 1, "SAME"))
    added = _seconds(lambda: x + x)
    return Rates(
        matmul=2 * _WIDTH**3 / product,
        convolution=2 * 8 * 64 * 32 * 9 * 32 * 32 / convolved,
        bandwidth=3 * 4 * _LARGE / added,
        launch=_launch(),
    )


def _launch() -> float:
    """Return the seconds of an operation of a compiled step, however small it is."""

    @tf.function  # type: ignore[untyped-decorator]
    def chain(x: Any) -> Any:
        for _ in range(_LAYERS):
            x = tf.linalg.matmul(x, x)
        return x

    x = tf.eye(4)
    return _seconds(lambda: chain(x)) / _LAYERS


def _seconds(call: Callable[[], Any]) -> float:
    return median_seconds(call, lambda given: given.numpy())
