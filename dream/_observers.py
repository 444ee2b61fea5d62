"""Observers of training, which tools register before a script starts.

Blocks and strategies tell them what begins; with none registered, nothing is asked of a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dream._adapter import Adapter

registered: list[Observer] = []
"""Those of this process."""


class Observer(ABC):
    """Watches a script train. draws_alike: have all ranks draw the same random numbers. plain: have
    blocks do nothing, as if the script knew nothing of them."""

    draws_alike = plain = False

    @abstractmethod
    def entering(self, adapter: Adapter, framework: str, strategy: str) -> None:
        """Note that a block is about to be entered."""

    @abstractmethod
    def entering_keras(self) -> None:
        """Note that Keras's part of a block is about to be entered."""

    @abstractmethod
    def observed(self, step: Callable[..., Any], model: Any) -> Callable[..., Any]:
        """Return the step, a callable on a batch that gives the global loss, to be used instead."""

    @abstractmethod
    def finish(self) -> None:
        """Note that the script has come to its good end."""


def register(asked: str) -> None:
    """Register the observer that a process is asked to have. asked: "module:function words"; the
    function makes it from the words."""
    from dream.strategies import registry

    place, _, words = asked.partition(" ")
    registered.append(registry.load(place)(words))


def draws_alike() -> bool:
    """Return whether all ranks are to draw the same random numbers."""
    return any(observer.draws_alike for observer in registered)


def plain() -> bool:
    """Return whether blocks are to do nothing."""
    return any(observer.plain for observer in registered)


def finish() -> None:
    """Tell all that the script has come to its good end."""
    for observer in registered:
        observer.finish()
