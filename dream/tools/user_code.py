"""Load the user's function that builds a model, and quote errors of the user's own code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import getsourcefile
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from dream._errors import ConfigurationError, DreamError, unknown
from dream.files.whole import is_file


def place_of(function: str | Callable[[], Any]) -> str:
    """Return where another process finds a function: its file, and its name there."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", "<none>")
    file = getsourcefile(function)
    if "<" in name or file is None or not Path(file).is_file():
        raise ConfigurationError(
            f"The model is built in a separate process. Received: {function!r}. Pass a function of "
            "a module or script, or 'file.py:function'."
        )
    return f"{Path(file).resolve()}:{name}"


def check_place(place: str) -> None:
    """Refuse what is no place, before any process starts."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise ConfigurationError(
            f"A model must be given as file.py:function or module:function. Received: {place!r}."
        )
    if where.startswith(".") and not where.endswith(".py"):
        raise ConfigurationError(
            f"A module needs its full name. Received: {place!r}. Write it like "
            "package.module:function, or name a file as file.py:function."
        )
    if where.endswith(".py") and not is_file(Path(where)):
        raise ConfigurationError(f"There is no such file. Received: {place!r}.")


def build_model(place: str) -> Any:
    """Build the model."""
    return load_function(place)()


def load_function(place: str) -> Callable[[], Any]:
    """Load the function itself; its file is run for it."""
    where, _, name = place.rpartition(":")
    module = _from_file(Path(where)) if where.endswith(".py") else import_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [n for n, value in vars(module).items() if n[0] != "_" and callable(value)]
            raise unknown(f"function in {where}", name, known)
        found = getattr(found, part)
    function: Callable[[], Any] = found
    return function


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    sys.path.insert(0, str(path.parent))  # as for a script
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # classes in it can be found by their module
    spec.loader.exec_module(module)
    return module


def flavour(model: Any) -> str:
    """ "torch" or "keras". Keras's models are torch's modules too, on its torch backend."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__}
    if ("keras", "Layer") in names:
        return "keras"
    if ("torch", "Module") in names:
        return "torch"
    raise ConfigurationError(
        f"The function did not return a model. Received: {type(model).__name__}. Return a "
        "torch.nn.Module or a Keras model."
    )


_GUARD = (
    "The file is imported, so what a script does by itself (read its command line, train) "
    'belongs under `if __name__ == "__main__":`, or the model in a file of its own'
)


@contextmanager
def explain_errors(place: str) -> Iterator[None]:
    """What the code at `place` raises is a ConfigurationError that quotes it from its first line
    there on; what a framework raises of it, one that has its words. Errors of dream's own code stay
    as they are."""
    try:
        yield
    except DreamError:
        raise
    except (Exception, SystemExit) as error:
        trace = _from(_file(place), error.__traceback__)
        name = type(error).__name__
        if trace is not None or isinstance(error, SyntaxError):
            quoted = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
            cure = _GUARD if isinstance(error, SystemExit) else "Fix it"
            raise ConfigurationError(
                f"The code for the model fails. Received: {place!r}, which raises {name}. {cure}:\n"
                f"{quoted}"
            ) from error
        if _is_ours(error.__traceback__):
            raise
        raise ConfigurationError(
            f"The model, its loss and its batch do not fit together. Received: {place!r}, which "
            f"ends in {name}: {error}. Train one step with them in a plain script first."
        ) from error


def _from(file: str, trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType | None) -> bool:
    """Return whether it is dream's own code that raises."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0] == "dream"


def _file(place: str) -> str:
    where = place.rpartition(":")[0]
    if where.endswith(".py"):
        return str(Path(where).resolve())
    try:
        found = find_spec(where)
    except (ImportError, ValueError):
        return ""
    return "" if found is None else found.origin or ""
