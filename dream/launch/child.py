"""What a rank runs: the user's script, module or function, as Python itself would run it.

Run as a file, not imported, so that a script that needs no dream does not pay for importing it.
How the rank ends is told to the launcher over a pipe as soon as it is known: a message names the
first cause, which the exits' order alone does not tell, and a rank that failed may not leave.

Usage: child.py script PATH ARGS... | module NAME ARGS... | function CALL RESULT
"""

from __future__ import annotations

import os
import sys
import threading
import time

REPORT = "DREAM_REPORT"
"""The number of the pipe's descriptor."""

_LONGEST_REPORT = 1 << 14
"""Bytes: they fit into the pipe, so that a launcher that stands still keeps nobody waiting."""

_GO_ON_LATER = 85
"""settings.GO_ON_LATER, which is not imported here."""

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
_FRAMEWORKS = ("contextlib", "dream", "horovod", "keras", "tensorflow", "torch")
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
    tell = Teller(os.environ.pop(REPORT, ""))
    _tell_of_threads(tell)
    kind, name, *rest = sys.argv[1:]
    file = os.path.abspath(name)  # noqa: PTH100 - while the folder is the one that it was named in
    if os.environ.get("DREAM_STRATEGY"):
        from dream.launch.joined.early import watch_tensorflow

        watch_tensorflow()
    if os.environ.get("DREAM_RANKS_HERE"):
        from dream.launch.joined.threads import share_before_imports

        share_before_imports()
    try:
        _run(kind, name, rest)
    except SystemExit as error:
        code, text = _exit_code(error.code)
        if code == 0:
            _tell_if_undivided(kind, file if kind == "script" else name)
        tell("left" if code in (0, _GO_ON_LATER) else "error", code, text)
        raise
    except BaseException as error:
        _fail(tell, error)
    else:
        _tell_if_undivided(kind, file if kind == "script" else name)
        # before the interpreter ends: peers may fail of it while this one still tidies up
        tell("left", 0, "")
        if kind == "function":
            from dream.launch.forks.end import end_function

            end_function()


def _run(kind: str, name: str, arguments: list[str]) -> None:
    """Run it; where it is observed, tell the observers of its good end."""
    asked = os.environ.get("DREAM_OBSERVER")
    if not asked:
        _RUNNERS[kind](name, arguments)
        return
    from dream import _observers

    _observers.register(asked)
    try:
        _RUNNERS[kind](name, arguments)
    except SystemExit as error:
        if error.code in (None, 0):
            _observers.finish()
        raise
    _observers.finish()


def _tell_if_undivided(kind: str, name: str) -> None:
    """Say where each rank has run all of a script. Tools see that for themselves."""
    if kind == "function" or name.startswith("dream.") or os.environ.get("DREAM_OBSERVER"):
        return
    from contextlib import suppress

    with suppress(Exception):  # it came to its good end
        from dream.launch import undivided

        undivided.tell(kind, name)


def _exit_code(given: object) -> tuple[int, str]:
    """Return what Python makes of `sys.exit`'s argument: the exit code, and what it prints."""
    if given is None:
        return 0, ""
    return (given & 0xFF, "") if isinstance(given, int) else (1, str(given))


def _explain(error: OSError) -> None:
    """Add what to do where every rank makes or removes one file."""
    from dream import cluster
    from dream.files import first

    first.explain(error, cluster.detect(asks=False))


def _fail(tell: Teller, error: BaseException) -> None:
    """Report and print the error as Python would, less this file's own frames."""
    import traceback

    trace = error.__traceback__
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error = error.with_traceback(trace)
    if isinstance(error, OSError):
        _explain(error)
    victim = looks_like_a_victim(error, str(error))
    if victim or _says_all(error):
        _shorten(error)
        trace = error.__traceback__
    text = "".join(traceback.format_exception(error))
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    tell("victim" if victim else "error", code, text)
    sys.excepthook(type(error), error, trace)
    raise SystemExit(code)


def _says_all(error: BaseException) -> bool:
    """Whether its words say what is wrong with a line of the script, or with another rank."""
    ours = any(kind.__name__ == "DreamError" for kind in type(error).__mro__)
    return ours and error.__cause__ is None and error.__context__ is None


def _shorten(error: BaseException) -> None:
    """Leave out what frameworks did below the script's last line: as they waited for a rank that
    was lost, another's error says why, and comes after this one."""
    last, at = None, error.__traceback__
    while at is not None:
        name = at.tb_frame.f_globals.get("__name__", "")
        last = last if name.partition(".")[0] in _FRAMEWORKS else at
        at = at.tb_next
    if last is not None and last.tb_next is not None:
        last.tb_next = None
        error.__cause__, error.__suppress_context__ = None, True


def _tell_of_threads(tell: Teller) -> None:
    """An error that ends a thread ends no rank, but is told: not every rank is on screen."""
    shown = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        shown(args)
        if args.exc_type is not SystemExit:
            import traceback

            trace = (args.exc_type, args.exc_value, args.exc_traceback)
            tell("thread", 0, "".join(traceback.format_exception(*trace)))

    threading.excepthook = hook


def _ours(filename: str) -> bool:
    return filename in (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")


class Teller:  # @final, less the import of typing
    """The rank's side of the pipe to its launcher; `process.py` is the other. Never raises."""

    def __init__(self, descriptor: str) -> None:
        """descriptor: its number; empty where no launcher listens."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sink = int(descriptor or -1)
        if descriptor:
            os.set_inheritable(self._sink, False)
            self._pipe = self._identity()

    def __call__(self, kind: str, code: int, text: str) -> None:
        """Tell of an end, or of a thread's: once, in a piece that the pipe takes whole."""
        body = text.encode(errors="replace")[-_LONGEST_REPORT:]
        head = f"{kind} {code} {time.time()} {_step()} {len(body)}\n".encode()
        if self._sink < 0 or os.getpid() != self._pid:  # a forked child's end is not the rank's
            return
        try:
            # a script that closed what it did not know may have opened a file in its place
            with self._lock:  # two threads' reports do not fit in one piece
                if self._identity() == self._pipe:
                    os.write(self._sink, head + body)
        except OSError:
            return  # the launcher is gone

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self._sink)
        return status.st_dev, status.st_ino


def _step() -> int:
    """Return the training step that this rank is in, or 0: where dream was not imported, too."""
    activity = sys.modules.get("dream.stall.activity")
    return 0 if activity is None else int(activity.progress.steps)


def _run_script(path: str, arguments: list[str]) -> None:
    from importlib.machinery import SourceFileLoader
    from pathlib import Path

    sys.argv = [path, *arguments]
    sys.path[0] = str(Path(path).resolve().parent)
    loader = SourceFileLoader("__main__", path)
    _run_source(Path(path).read_bytes(), path, __loader__=loader, __annotations__={})


def _run_source(source: bytes, path: str, **names: object) -> None:
    """Run what is the main module. names: those that Python gives it too."""
    from types import ModuleType

    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, **names)
    _become_main(module)
    if os.environ.get("DREAM_CHECKPOINT"):
        from dream.checkpoint.untouched import rewriting
        from dream.checkpoint.untouched.loop import CountedLoop

        module.__dict__[rewriting.LOOP] = CountedLoop
        code = rewriting.compiled(source, path)
    else:
        code = compile(source, path, "exec", dont_inherit=True)
    exec(code, module.__dict__)


def _become_main(module: object) -> None:
    """Our own module is kept alive by the reference in sys: its functions need its globals."""
    sys.modules["__dream_child__"] = sys.modules["__main__"]
    sys.modules["__main__"] = module  # type: ignore[assignment]
    if "__mp_main__" in sys.modules:  # multiprocessing's name for it, imported before a fork
        sys.modules["__mp_main__"] = module  # type: ignore[assignment]


def _run_module(name: str, arguments: list[str]) -> None:
    import runpy

    sys.argv = [name, *arguments]
    sys.path[0] = os.getcwd()  # noqa: PTH109 - as Python itself writes it
    if not (os.environ.get("DREAM_CHECKPOINT") and _run_counted(name)):
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_counted(name: str) -> bool:
    """Run a module's source as `python -m` does, its loops counted. False where there is none, for
    `runpy` to say so."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import find_spec

    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = find_spec(f"{name}.__main__")
    except ImportError:
        return False
    if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
        return False
    sys.argv[0] = path = spec.origin
    names = {"__loader__": spec.loader, "__package__": spec.parent, "__spec__": spec}
    _run_source(spec.loader.get_data(path), path, **names, __cached__=spec.cached)
    return True


def _run_function(call: str, rest: list[str]) -> None:
    """`dream.launch`: the pickled call's first part is the parent's sys.path, by which the rest
    can be found."""
    import pickle
    from pathlib import Path

    with Path(call).open("rb") as file:
        sys.path[:] = pickle.load(file)
        function, arguments, keywords = pickle.load(file)
    result = function(*arguments, **keywords)
    from dream.launch.function import dump

    Path(f"{rest[0]}{os.environ['RANK']}").write_bytes(dump(result, "The result"))


_RUNNERS = {"script": _run_script, "module": _run_module, "function": _run_function}

if __name__ == "__main__":
    main()
