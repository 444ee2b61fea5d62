"""The all-reduce as an op of TensorFlow: compiled once for the TensorFlow that is installed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from ctypes import CDLL, c_int64, c_void_p, cast
from functools import cache
from pathlib import Path
from typing import Any, final

import tensorflow as tf

from dream._errors import DreamError
from dream._log import logger
from dream.adapters.tensorflow import errors
from dream.cluster.settings import cache_folder
from dream.shared_memory import Group
from dream.shared_memory.library import library

_SOURCE = Path(__file__).with_name("op.cc")
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300
_CODE = re.compile(r"dream_shared group (\d+) code (\d+)")
_groups: list[Group] = []


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
