"""What the variables of a script's functions, modules and objects have come to since its training
began, and set again in a process that has come to the same place."""

from __future__ import annotations

import argparse
import ctypes
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, GeneratorType, ModuleType, SimpleNamespace
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from dream.adapters.pytorch.checkpoint import values
from dream.adapters.pytorch.checkpoint.loop_form import LoopForm, is_script_file

_DEEP = 4
_SOURCES = (itertools.count, itertools.cycle)
_TORCHS = (nn.Module, Optimizer, DataLoader, Dataset, torch.Tensor)
_NAMESPACES = (argparse.Namespace, SimpleNamespace)
Told = Mapping[tuple[str, str], Any]
"""Plain words by (SCOPE, NAME)."""
_OWN = __name__.partition(".")[0]


@final
class _First:
    """What a variable was at first: as plain values, or, where it is opaque, which object."""

    def __init__(self, value: Any) -> None:
        self.told = values.told(value)
        if self.told == values.OPAQUE:
            self._held = _holding(value)
            self._stamp = values.stamp_of(value)

    def is_still(self, value: Any) -> bool:
        """Whether an opaque value is the one that was there, and as it was."""
        if self.told != values.OPAQUE:
            return False
        return self._held() is value and self._stamp == values.stamp_of(value)


def _holding(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


@final
class _Scope:
    """The variables of a function's call, of a module or of an object. lasting: whether it was
    there when training began; else it is of one pass. owner: the frame, or what holds them."""

    def __init__(self, path: str, owner: Any) -> None:
        self.path, self.owner = path, owner
        self.lasting = True
        self.first: dict[str, _First] = {}

    def items(self) -> dict[str, Any]:
        frame = isinstance(self.owner, FrameType)
        return dict(self.owner.f_locals if frame else vars(self.owner))

    def begin(self) -> None:
        """Remember what they are now."""
        self.first = {name: _First(value) for name, value in self.plain_items()}

    def plain_items(self) -> Iterator[tuple[str, Any]]:
        """Those that may say where training stands: no code, and nothing that is looked into."""
        for name, value in self.items().items():
            if not (name.startswith("__") or _is_code(value) or is_object(value)):
                yield name, value

    def set(self, name: str, said: Any) -> None:
        value = values.made(said, self.items().get(name))
        if isinstance(self.owner, FrameType):
            variables = self.owner.f_locals
            variables[name] = value
            # before Python 3.13 that is a copy, which goes back into the frame so
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self.owner), ctypes.c_int(0))
        else:
            setattr(self.owner, name, value)


@final
@dataclass(frozen=True, slots=True)
class Changed:
    """told: what has changed, in plain words by (SCOPE, NAME). given: likewise what a call of this
    pass was given, and has not changed. lost: names of what is not plain, and has changed."""

    told: Mapping[tuple[str, str], Any]
    given: Mapping[tuple[str, str], Any]
    lost: list[str]


@final
class Variables:
    """Those of the frames that a loop is in, of the modules they are of, and of the objects of the
    script's own classes that they hold."""

    def __init__(self) -> None:
        self._scopes: list[_Scope] = []
        self._any = False
        self._form = LoopForm(())

    def began(self, form: LoopForm) -> None:
        """A pass begins. What has been there before keeps what it was at first."""
        before = {id(scope.owner): scope for scope in self._scopes}
        scopes = []
        for scope in _scopes(form):
            known = before.get(id(scope.owner))
            if known is None or known.owner is not scope.owner or known.path != scope.path:
                frame = isinstance(scope.owner, FrameType)
                scope.lasting = not (frame and self._any)
                if frame or not self._any:  # of an object that came later all is kept
                    scope.begin()
                known = scope
            scopes.append(known)
        self._scopes, self._any, self._form = scopes, True, form

    def changed(self) -> Changed:
        told: dict[tuple[str, str], Any] = {}
        given: dict[tuple[str, str], Any] = {}
        lost: list[str] = []
        for scope in self._scopes:
            for name, value in scope.plain_items():
                first, now = scope.first.get(name), values.told(value)
                if now == values.OPAQUE:
                    if self._draws(value) or not (first is None or first.is_still(value)):
                        lost.append(name)
                elif first is None or first.told != now:
                    told[scope.path, name] = now
                elif not scope.lasting and now[0] in ("value", "tuple"):
                    given[scope.path, name] = now
        return Changed(told, given, lost)

    def _draws(self, value: Any) -> bool:
        """Whether something is drawn from it that no process can put back, and that the loop does
        not draw its batches from."""
        if isinstance(value, GeneratorType):
            return value.gi_frame is not None and value.gi_frame not in self._form.generators
        return isinstance(value, _SOURCES)

    def told_now(self, keys: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
        """Return what these are now, of those that are there."""
        scopes = {scope.path: scope.items() for scope in self._scopes}
        return {
            (path, name): values.told(scopes[path][name])
            for path, name in keys
            if name in scopes.get(path, {})
        }

    def set(self, told: Mapping[tuple[str, str], Any]) -> list[str]:
        """Set them, and return the names of those whose scope is not here."""
        scopes = {scope.path: scope for scope in self._scopes}
        for (path, name), said in told.items():
            if path in scopes:
                scopes[path].set(name, said)
        return [name for path, name in told if path not in scopes]


def _scopes(form: LoopForm) -> list[_Scope]:
    """Modules and frames, outermost first, then the objects that they hold, each once."""
    found: dict[str, Any] = {}
    for number, frame in enumerate(reversed(form.frames)):
        module = sys.modules.get(str(frame.f_globals.get("__name__")))
        if module is not None and vars(module) is frame.f_globals:
            found.setdefault(module.__name__, module)
        if frame.f_locals is not frame.f_globals:
            found[f"{number} {frame.f_code.co_name}"] = frame
    scopes = [_Scope(path, owner) for path, owner in found.items()]
    seen: set[int] = set()
    inner = [(scope, 0) for scope in scopes]
    for scope, deep in inner:
        for name, value in scope.items().items():
            if is_object(value) and id(value) not in seen and deep < _DEEP:
                seen.add(id(value))
                inner.append((_Scope(f"{scope.path}.{name}", value), deep + 1))
    return [scope for scope, _ in inner]


def _is_code(value: Any) -> bool:
    own = str(type(value).__module__).startswith(f"{_OWN}.")
    return own or isinstance(value, (ModuleType, type)) or hasattr(value, "__code__")


def is_object(value: Any) -> bool:
    """Whether it is of a class of the script's own, whose attributes are looked at."""
    if isinstance(value, _NAMESPACES):
        return True
    if isinstance(value, _TORCHS) or _is_code(value) or not hasattr(value, "__dict__"):
        return False
    module = type(value).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return module == "__main__" or (file is not None and is_script_file(file))
