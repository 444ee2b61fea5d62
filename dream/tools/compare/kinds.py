"""The frameworks of the comparison, and the rows of two on one ring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from dream._errors import unknown
from dream._spec import Framework

Flavour = Literal["torch", "keras", "step"]
"""Which of a task's programs a rank runs: a loop of torch's, Keras's fit, TensorFlow's steps."""


@dataclass(frozen=True, slots=True)
class Side:
    """What some ranks of a row are. backend: what dream calls it, and KERAS_BACKEND."""

    backend: Framework
    flavour: Flavour


@dataclass(frozen=True, slots=True)
class Kind:
    """A framework as the table names it, or two on one ring.

    sides: dealt out by rank; packages: what must be installed; install: what brings them.
    oracle: the framework whose `single` it is held against; empty for its own.
    """

    sides: tuple[Side, ...]
    packages: tuple[str, ...]
    install: str
    oracle: str = ""

    @property
    def backends(self) -> tuple[Framework, ...]:
        return tuple(side.backend for side in self.sides)

    @property
    def mixed(self) -> bool:
        return len(self.sides) > 1


_TORCH, _KERAS_TORCH = Side("torch", "torch"), Side("torch", "keras")
_TENSORFLOW, _STEP = Side("tensorflow", "keras"), Side("tensorflow", "step")
_BOTH = ("torch", "tensorflow", "keras")
_BOTH_BY = "pip install 'dream-systems[torch,tensorflow]'"

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "torch": Kind((_TORCH,), ("torch",), "pip install 'dream-systems[torch]'"),
        "tensorflow": Kind(
            (_TENSORFLOW,), ("tensorflow", "keras"), "pip install 'dream-systems[tensorflow]'"
        ),
        "keras-torch": Kind(
            (_KERAS_TORCH,), ("torch", "keras"), "pip install 'dream-systems[torch]' keras"
        ),
    }
)
MIXED: Mapping[str, Kind] = MappingProxyType(
    {
        "torch+tensorflow": Kind((_TORCH, _STEP), _BOTH, _BOTH_BY, oracle="torch"),
        "keras-torch+tensorflow": Kind(
            (_KERAS_TORCH, _TENSORFLOW), _BOTH, _BOTH_BY, oracle="keras-torch"
        ),
    }
)
"""What `--mixed` adds."""


def check_framework(name: str) -> Kind:
    if name not in KINDS:
        raise unknown("framework", name, KINDS)
    return KINDS[name]
