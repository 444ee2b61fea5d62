"""Shared memory as a wire of TensorFlow, eagerly and inside a tf.function."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from ctypes import CDLL, c_int64, c_void_p, cast
from functools import cache
from pathlib import Path
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from dream._errors import DreamError
from dream._log import logger
from dream._topology import Cluster
from dream.adapters.tensorflow import errors, runtime
from dream.adapters.tensorflow.errors import translated
from dream.cluster.settings import cache_folder
from dream.collectives import Wire
from dream.collectives.transport import Combine, Length
from dream.shared_memory import OPERATIONS, Group, groups
from dream.shared_memory.library import library

_SOURCE = Path(__file__).with_name("op.cc")
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300
_CODE = re.compile(r"dream_shared group (\d+) code (\d+)")
_groups: list[Group] = []


def connect(place: Cluster, reduction: str) -> Wire:
    """The wire of the job's ranks, which share a host."""
    del reduction
    runtime.waits_in_functions()
    return SharedMemory(place, groups.everybody(place), "all")


@final
class SharedMemory(Wire):
    """Some ranks of the job. name: the group's, of no other.

    Sums are an op of TensorFlow's; what only moves goes by NumPy, in a graph too. A variable that
    both use keeps them in order.
    """

    def __init__(self, place: Cluster, group: Group, name: str) -> None:
        self._place, self._group, self._name = place, group, name
        self._groups = 0
        self._op = op_of(group)
        self._order = _order_of(group)

    @property
    def name(self) -> str:
        return groups.NAME

    def all_reduce(self, buffers: list[tf.Tensor], op: Combine) -> list[tf.Tensor]:
        with translated(), tf.device("CPU:0"):
            return [self._reduced(buffer, op) for buffer in buffers]

    def broadcast(self, buffers: list[tf.Tensor], root: int) -> list[tf.Tensor]:
        def act(own: np.ndarray) -> np.ndarray:
            own = own.copy()
            self._group.broadcast(own.ctypes.data, own.size, own.dtype.name, root)
            return own

        return [self._by_numpy(act, buffer, buffer.shape) for buffer in buffers]

    def all_gather(self, buffer: tf.Tensor) -> tf.Tensor:
        size = self._group.size

        def act(own: np.ndarray) -> np.ndarray:
            whole = np.empty(size * own.size, own.dtype)
            counts = [own.size] * size
            self._group.all_gather(own.ctypes.data, whole.ctypes.data, counts, own.dtype.name)
            return whole

        length = buffer.shape[0]
        return self._by_numpy(act, buffer, [None if length is None else size * length])

    def all_to_all(
        self, buffer: tf.Tensor, sends: Sequence[Length], receives: Sequence[Length]
    ) -> tf.Tensor:
        size = self._group.size

        def act(own: np.ndarray, lengths: np.ndarray) -> np.ndarray:
            there, here = lengths[:size].tolist(), lengths[size:].tolist()
            came = np.empty(sum(here), own.dtype)
            self._group.all_to_all(own.ctypes.data, came.ctypes.data, there, here, own.dtype.name)
            return came

        if tf.executing_eagerly():  # an operation costs more there than what it is for
            lengths = np.array([int(length) for length in (*sends, *receives)])
            return tf.convert_to_tensor(act(buffer.numpy(), lengths))
        given = tf.stack([tf.cast(length, tf.int64) for length in (*sends, *receives)])
        return self._by_numpy(act, buffer, [None], given)

    def group(self, ranks: Sequence[int]) -> Wire | None:
        self._groups += 1
        name = f"{self._name}.{self._groups}"
        group = groups.some(self._place, self._group.ranks, ranks, name)
        return None if group is None else SharedMemory(self._place, group, name)

    def close(self) -> None:
        """The group stays for later blocks; it ends with the process."""

    def _reduced(self, buffer: tf.Tensor, op: Combine) -> tf.Tensor:
        if self._op is not None:
            return self._op.all_reduce(buffer, self._order.handle, OPERATIONS[op])

        def act(own: np.ndarray) -> np.ndarray:
            result = np.empty_like(own)
            self._group.all_reduce(
                own.ctypes.data, result.ctypes.data, own.size, own.dtype.name, op
            )
            return result

        return self._by_numpy(act, buffer, buffer.shape)

    def _by_numpy(
        self, act: Callable[..., np.ndarray], buffer: tf.Tensor, shape: Any, *more: tf.Tensor
    ) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.convert_to_tensor(act(buffer.numpy(), *[x.numpy() for x in more]))
        with tf.device("CPU:0"):
            with tf.control_dependencies([self._turn()]):
                result = tf.numpy_function(act, [buffer, *more], buffer.dtype)
            with tf.control_dependencies([result]):
                self._turn()
        return tf.ensure_shape(result, shape)

    def _turn(self) -> tf.Operation:
        return self._order.assign_add(1, read_value=False)


_orders: WeakKeyDictionary[Group, tf.Variable] = WeakKeyDictionary()


def _order_of(group: Group) -> tf.Variable:
    """What every call on the group writes, by whichever wire: TensorFlow orders a graph's ops on
    one variable, and would run others as they come, not alike on all ranks."""
    if group not in _orders:
        with tf.init_scope(), tf.device("CPU:0"):
            _orders[group] = tf.Variable(0.0, trainable=False)
    return _orders[group]


@final
class Op:
    """The op of one group of ranks."""

    def __init__(self, module: Any, functions: CDLL, group: Group) -> None:
        self._run = module.dream_shared_all_reduce
        self._number = len(_groups)
        _groups.append(group)
        functions.dream_op_group(c_int64(self._number), c_void_p(group.address))

    def all_reduce(self, buffer: tf.Tensor, order: tf.Tensor, operation: int) -> tf.Tensor:
        """order: the handle of a variable that keeps a graph's collectives in order."""
        return self._run(buffer=buffer, order=order, group=self._number, op=operation)


def op_of(group: Group) -> Op | None:
    """None, which is said once, where it cannot be compiled."""
    found = _library()
    return None if found is None else Op(*found, group)


def _explained(error: tf.errors.OpError) -> DreamError | None:
    """The op's errors hold but numbers; the group knows the rest."""
    said = _CODE.search(str(error.message))
    if said is None:
        return None
    return _groups[int(said.group(1))].error(int(said.group(2)), "all_reduce")


errors.explained_by(_explained)


@cache
def _library() -> tuple[Any, CDLL] | None:
    try:
        path = _compiled()
        module = tf.load_op_library(str(path))
    except (OSError, subprocess.SubprocessError, tf.errors.OpError) as error:
        logger.info(
            "shared memory goes through NumPy, which copies: its op does not compile here "
            "(%s). Install a C++ compiler.", _last_line(error),
        )  # fmt: skip
        return None
    functions = CDLL(str(path))
    core = [cast(library()[name], c_void_p) for name in ("all_reduce", "again", "abandon")]
    functions.dream_op_core(*core)
    return module, functions


def _compiled() -> Path:
    """Where it lies. One process compiles, the others wait for it; the lock is the kernel's, and
    falls with its process."""
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    key = hashlib.blake2b(
        "\n".join([tf.version.COMPILER_VERSION, tf.__version__, *flags]).encode()
        + _SOURCE.read_bytes(),
        digest_size=8,
    ).hexdigest()
    folder = cache_folder() / "ops"
    path = folder / f"shared_memory-{tf.__version__}-{key}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _compile(path, flags)
    return path


def _compile(path: Path, flags: list[str]) -> None:
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"no {', '.join(_COMPILERS)}")
    logger.info("compiling TensorFlow's op for shared memory, once for this TensorFlow")
    partial = path.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-shared", "-fPIC", str(_SOURCE), "-o", str(partial), *flags]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _last_line(error: Exception) -> str:
    said = getattr(error, "stderr", None) or str(error)
    errors = [line for line in str(said).splitlines() if "error" in line]
    return (errors or str(said).splitlines() or ["no message"])[0]
