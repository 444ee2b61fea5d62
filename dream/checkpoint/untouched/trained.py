"""What a framework tells of a training whose script has not said what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dream.checkpoint.checkpointer import Parts


class Trained(ABC):
    """What trains in a block, as the framework at hand knows it.

    known: whether it has been said, or need not be, that nothing is kept. steps: those that
    optimizers of the block have taken, all together. updates: those of the first to step in each
    loop. kinds: of objects that a checkpoint keeps by itself, or that `unkept` tells of. parted:
    those of which it keeps a part, and a script's class may hold more. bare: one of those without
    any script's attributes.
    """

    known: bool
    steps: int
    updates: int
    kinds: tuple[type[Any], ...]
    parted: tuple[type[Any], ...]
    bare: object

    @abstractmethod
    def begin(self) -> None:
        """A loop begins: whichever optimizer steps next counts its updates."""

    @abstractmethod
    def named(self, variables: Iterable[tuple[str, Any]]) -> Parts:
        """Return all that may train and that variables name, each once, by the first of its names;
        "" where it is the only one of its kind."""

    @abstractmethod
    def unnamed(self, parts: Parts) -> list[str]:
        """Return what has trained and is not among these, in words."""

    @abstractmethod
    def within(self, value: Any) -> Mapping[str, Any]:
        """Return by name what a script may have made in what is kept otherwise: parts of a model, a
        loader's data and what draws its order."""

    @abstractmethod
    def left_over(self, parts: Parts) -> bool:
        """Whether gradients came after their optimizer's last step, and were not of that one."""

    @abstractmethod
    def form(self, parts: Parts) -> Any:
        """Return in plain values what parts models and optimizers have."""

    @abstractmethod
    def modes(self, parts: Parts) -> list[Any]:
        """Return which layers train, and which parameters are trained."""

    @abstractmethod
    def set_modes(self, parts: Parts, modes: list[Any]) -> None:
        """Set them again."""

    @abstractmethod
    def live(self) -> Callable[[Any], bool]:
        """Return what tells whether a value lies in the memory of a model."""

    @abstractmethod
    def version(self, value: Any) -> int | None:
        """Return what grows whenever a tensor is written to; None for anything else, and for
        parameters."""

    @abstractmethod
    def write(self, tensor: Any, value: Any) -> bool:
        """Write a value into a tensor; tell whether it fits."""

    @abstractmethod
    def lines(self) -> str:
        """Return the lines that have the training saved and gone on with where it stands."""
