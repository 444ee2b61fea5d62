"""From `file.py:function` or `module:function` to a model, and whose it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import getsourcefile
from pathlib import Path
from types import ModuleType
from typing import Any

from dream._errors import ConfigurationError, unknown
from dream.files.whole import is_file


def place_of(function: str | Callable[[], Any]) -> str:
    """Where another process finds a function: its file, and its name there."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", "<none>")
    file = getsourcefile(function)
    if "<" in name or file is None or not Path(file).is_file():
        raise ConfigurationError(
            f"A process of its own builds the model. Received: {function!r}. Give a function of a "
            "module or script, or 'file.py:function'."
        )
    return f"{Path(file).resolve()}:{name}"


def check(place: str) -> None:
    """Refuse what is no place, before any process starts."""
    where, _, name = place.rpartition(":")
    if not where or not name:
        raise ConfigurationError(
            f"A model is named as file.py:function or module:function. Received: {place!r}."
        )
    if where.startswith(".") and not where.endswith(".py"):
        raise ConfigurationError(
            f"A module is named from the top. Received: {place!r}. Write it like package.module:"
            "function, or name a file as file.py:function."
        )
    if where.endswith(".py") and not is_file(Path(where)):
        raise ConfigurationError(f"There is no such file. Received: {place!r}.")


def build(place: str) -> Any:
    """The model that the function builds."""
    return load(place)()


def load(place: str) -> Callable[[], Any]:
    """The function itself; its file is run for it."""
    where, _, name = place.rpartition(":")
    module = _from_file(Path(where)) if where.endswith(".py") else import_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise unknown(f"function in {where}", name, [n for n in vars(module) if n[0] != "_"])
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
        f"The function gave no model. Received: {type(model).__name__}. Return a torch.nn.Module "
        "or a Keras model."
    )
