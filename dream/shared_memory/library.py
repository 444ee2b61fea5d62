"""The native core: found, loaded and described to ctypes."""

from __future__ import annotations

import shutil
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    c_double,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dream._errors import NotInstalled

_FOLDER = Path(__file__).parent
_COMPILERS = ("c++", "g++", "clang++")


class Signature(Structure):
    """What a rank lays open of a call."""

    _fields_ = (
        ("kind", c_uint8),
        ("dtype", c_uint8),
        ("op", c_uint8),
        ("unused", c_uint8),
        ("root", c_int32),
        ("count", c_uint64),
        ("lengths", c_uint64),
        ("tag", c_uint64),
    )


_GROUP, _BUFFER, _COUNT, _TAG = c_void_p, c_void_p, c_uint64, c_uint64
_LENGTHS = POINTER(c_uint64)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "bytes": (c_size_t, [c_int, c_size_t]),
    "open": (
        c_int,
        [POINTER(_GROUP), c_int, c_void_p, c_int, c_int, c_size_t, c_size_t, c_int, c_double],
    ),
    "close": (None, [_GROUP]),
    "barrier": (c_int, [_GROUP, _TAG]),
    "all_reduce": (c_int, [_GROUP, _BUFFER, _BUFFER, _COUNT, c_int, c_int, _TAG]),
    "reduce_scatter": (c_int, [_GROUP, _BUFFER, _BUFFER, _COUNT, c_int, c_int, _TAG]),
    "reduce_there": (c_int, [_GROUP, _BUFFER, c_uint64, _COUNT, c_int, c_int, c_int, _TAG]),
    "broadcast": (c_int, [_GROUP, _BUFFER, _COUNT, c_int, c_int, _TAG]),
    "all_gather": (c_int, [_GROUP, _BUFFER, _BUFFER, _LENGTHS, c_int, _TAG]),
    "all_to_all": (c_int, [_GROUP, _BUFFER, _BUFFER, _LENGTHS, _LENGTHS, c_int, _TAG]),
    "ride": (None, [_GROUP, c_void_p, c_void_p]),
    "again": (c_int, [_GROUP]),
    "abandon": (c_int, [_GROUP]),
    "culprit": (c_int, [_GROUP]),
    "said": (Signature, [_GROUP, c_int]),
}


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the native core can be used here.

    path: of the core; None where there is none, and then why says what to do.
    """

    path: Path | None
    why: str = ""


def status() -> Status:
    """Whether the core is there. It is not loaded for this."""
    for found in sorted(_FOLDER.glob("_core*.so")):
        return Status(found)
    return Status(None, f"its native core was not built: {_reason()}")


def _reason() -> str:
    again = "install dream again: pip install --force-reinstall --no-deps dream-systems"
    if any(map(shutil.which, _COMPILERS)):
        return f"there was no C++ compiler then, or it failed; there is one now, so {again} -v"
    return f"there is no C++ compiler ({', '.join(_COMPILERS)}); install one, then {again}"


@cache
def library() -> dict[str, Any]:
    """The core's functions, by their names without `dream_shared_`. The interpreter is free
    while one runs."""
    found = status()
    if found.path is None:
        raise NotInstalled(f"reduction='shared_memory' cannot be used: {found.why}")
    try:
        core = CDLL(str(found.path), use_errno=True)
    except OSError as error:
        raise NotInstalled(
            f"The native core cannot be loaded. Received: {error}. Install dream again on this "
            "machine."
        ) from error
    functions = {}
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(core, f"dream_shared_{name}", None)
        if function is None:
            raise NotInstalled(
                "The native core is of another version of dream. Received: one without "
                f"dream_shared_{name}. Install dream again: it is built then."
            )
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions
