"""What a rank runs: the user's script, module or function, as Python itself would run it.

Run as a file, not imported, so that a script that needs no dream does not pay for importing it.
How the rank fails is written to a file for the launcher: a message names the first cause, and
the exits' order alone does not tell it.

Usage: child.py script PATH ARGS... | module NAME ARGS... | function CALL RESULT
"""

from __future__ import annotations

import os
import sys
import time

REPORT = "DREAM_REPORT"
PARENT = "DREAM_LAUNCHER"
_VICTIM_TYPES = (
    "ConnectionError",
    "WorkerFailed",
    "DistError",
    "HorovodInternalError",
    "UnavailableError",
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
)
_VICTIM_WORDS = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket closed",
    "socket timeout",
    "gloo/transport",
    "horovod has been shut down",
    "nccl",
    "collective ops is aborted",
    "failed to connect to all addresses",
)


def looks_like_a_victim(error: BaseException | None, text: str) -> bool:
    """Whether a failure comes of another rank's: what a lost peer looks like from here."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        names = {kind.__name__ for kind in type(error).__mro__}
        if names.intersection(_VICTIM_TYPES):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return any(word in text.lower() for word in _VICTIM_WORDS)


def main() -> None:
    # A launcher that died while this interpreter started could not tell us.
    if os.environ.pop(PARENT, None) not in (None, str(os.getppid())):
        os._exit(1)
    report = os.environ.pop(REPORT, "")
    kind, name, *rest = sys.argv[1:]
    if os.environ.get("DREAM_STRATEGY"):
        from dream.launch.early import watch

        watch()
    try:
        _run(kind, name, rest)
    except SystemExit as error:
        if error.code in (None, 0):
            _write(report, "left", "")
        else:
            _write(report, "error", f"SystemExit: {error.code}")
        raise
    except BaseException as error:
        _fail(report, error)
    else:
        _write(report, "left", "")


def _run(kind: str, name: str, arguments: list[str]) -> None:
    """Run it; where it is verified, have what it did written down at its good end."""
    if not os.environ.get("DREAM_RECORD"):
        _RUNNERS[kind](name, arguments)
        return
    from dream import recording

    recording.begin()
    try:
        _RUNNERS[kind](name, arguments)
    except SystemExit as error:
        if error.code in (None, 0):
            recording.finish()
        raise
    recording.finish()


def _fail(report: str, error: BaseException) -> None:
    """Report and print the error as Python would, less this file's own frames."""
    import traceback

    trace = error.__traceback__
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error = error.with_traceback(trace)
    text = "".join(traceback.format_exception(error))
    _write(report, "victim" if looks_like_a_victim(error, str(error)) else "error", text)
    sys.excepthook(type(error), error, trace)
    raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1)


def _ours(filename: str) -> bool:
    return filename in (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")


def _write(report: str, kind: str, text: str) -> None:
    """Whole or not at all, since the launcher may look at any moment. "left" is told before the
    interpreter ends: peers may fail of it while this one still tidies up."""
    if report:
        # pathlib's import would cost each start
        with open(f"{report}.part", "w", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            file.write(f"{kind} {time.time()}\n{text}")
        os.replace(f"{report}.part", report)  # noqa: PTH105


def _run_script(path: str, arguments: list[str]) -> None:
    from importlib.machinery import SourceFileLoader
    from pathlib import Path
    from types import ModuleType

    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=path,
        __builtins__=__builtins__,
        __loader__=SourceFileLoader("__main__", path),
        __annotations__={},
    )
    _become_main(module)
    exec(code, module.__dict__)


def _become_main(module: object) -> None:
    """Our own module is kept alive by the reference in sys: its functions need its globals."""
    sys.modules["__dream_child__"] = sys.modules["__main__"]
    sys.modules["__main__"] = module  # type: ignore[assignment]


def _run_module(name: str, arguments: list[str]) -> None:
    import runpy

    sys.argv = [name, *arguments]
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as Python itself writes it
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_function(call: str, rest: list[str]) -> None:
    """`dream.launch`: the pickled call's first part is the parent's sys.path, by which the rest
    can be found."""
    import pickle
    from pathlib import Path

    with Path(call).open("rb") as file:
        sys.path[:] = pickle.load(file)
        function, arguments, keywords = pickle.load(file)
    result = function(*arguments, **keywords)
    from dream.launch.pickles import dump

    Path(f"{rest[0]}{os.environ['RANK']}").write_bytes(dump(result, "The result"))


_RUNNERS = {"script": _run_script, "module": _run_module, "function": _run_function}

if __name__ == "__main__":
    main()
