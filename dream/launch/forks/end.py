"""Let a process end as Python has it, save that frameworks are not taken apart.

An interpreter ends by clearing its modules, and then libraries destroy what they hold: for torch or
TensorFlow that takes 0.2 s of a processor and changes nothing that anyone sees. What a script can
see is kept: its threads are waited for, what was registered for the end is called, its own objects
are deleted, and files are written out.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from types import FrameType, ModuleType
from typing import Any, final

from dream._patches import is_pythons

_DREAM = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120

_MARK = "__dream_mark__"


def end_script(
    code: int, frameworks: Collection[str], finalizers: Collection[weakref.finalize[Any, Any]]
) -> None:
    """End a script's process with an exit code. Return where Python itself has to end it: it has
    loaded compiled modules, whose ends hang on Python's, a thread that is a daemon still runs its
    code, or what it has printed cannot be written.

    frameworks: the packages that are not taken apart. finalizers: those that do it."""
    threading._shutdown()  # type: ignore[attr-defined]
    own = [name for name in sys.modules if _is_own(name, frameworks)]
    if _compiled(own) or _running(own):
        return
    for finalizer in finalizers:
        finalizer.atexit = False
    atexit._run_exitfuncs()
    with suppress(Exception):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # while what the script may have put there has all its names
        files = _write_out()  # held, since one in a cycle may be closed before what is written last
        _delete(own)
        files.clear()
        _write_out()
        sys.stdout.flush()
        os._exit(code)


def end_function() -> None:
    """End a process that was started for one function, as multiprocessing ends its own."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _write_out()
    os._exit(0)


def _is_own(name: str, frameworks: Collection[str]) -> bool:
    """Return whether a module is of the script's own: no framework's, Python's or dream's."""
    module = sys.modules[name]
    if name.partition(".")[0] in frameworks or is_pythons(name, module):
        return False
    file = getattr(module, "__file__", None)
    return isinstance(module, ModuleType) and not str(file).startswith(_DREAM + os.sep)


def _compiled(own: Collection[str]) -> bool:
    files = (str(getattr(sys.modules[name], "__file__", "")) for name in own)
    return any(file.endswith(tuple(EXTENSION_SUFFIXES)) for file in files)


def _running(own: Collection[str]) -> bool:
    """Return whether another thread is inside a function of one of the modules."""
    others = {**sys._current_frames()}
    del others[threading.get_ident()]
    frames = (frame for innermost in others.values() for frame in _outwards(innermost))
    return any(frame.f_globals.get("__name__") in own for frame in frames)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _delete(own: Collection[str]) -> None:
    """Delete what modules hold, in Python's order: those that nothing else holds, then what is
    named in the others, the last first."""
    for name in ("last_type", "last_value", "last_traceback"):
        setattr(sys, name, None)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, name, getattr(sys, f"__{name}__"))
    held = [_mark(sys.modules[name].__dict__) for name in own]
    for name in own:
        sys.modules[name] = None  # type: ignore[assignment]
    gc.collect()
    for each in reversed(held):
        if (mark := each()) is not None:
            for names in gc.get_referrers(mark):
                if isinstance(names, dict):
                    _clear(names)
    gc.collect()


@final
class _Mark:
    """Is among a module's names, and so is there while anything has these: a function has, be its
    module gone, as one that handles a signal or a method of what stands for `sys.stdout`."""


def _mark(names: dict[str, Any]) -> weakref.ref[_Mark]:
    names[_MARK] = mark = _Mark()
    return weakref.ref(mark)


def _clear(names: dict[str, object]) -> None:
    private = [name for name in names if name.startswith("_") and not name.startswith("__")]
    for name in (*private, *(name for name in names if name not in private)):
        if name != "__builtins__":
            names[name] = None


def _write_out() -> list[Any]:
    """Write out every file, C's own too. Returns Python's."""
    held = [sys.stdout, sys.stderr, *gc.get_objects()]
    files = (io.BufferedIOBase, io.TextIOBase)
    writers = {
        kind
        for kind in set(map(type, held))
        if issubclass(kind, files) or "SummaryWriter" in [each.__name__ for each in kind.__mro__]
    }
    found = [each for each in held if type(each) in writers]
    for each in found:
        with suppress(Exception):  # closed
            each.flush()
    if (ctypes := sys.modules.get("ctypes")) is not None:
        ctypes.CDLL(None).fflush(None)
    return found
