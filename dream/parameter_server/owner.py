"""What a framework does on a server: hold parameters, and step an optimizer over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Owner(ABC):
    """A server's parameters and their optimizer. Never called by two threads at once."""

    @abstractmethod
    def build(self, recipe: bytes, values: NDArray[Any]) -> None:
        """Take the first worker's optimizer, as `recipe` describes it for this server, and the
        parameters end to end, shape (n,)."""

    @property
    @abstractmethod
    def values(self) -> NDArray[Any]:
        """The parameters end to end, shape (n,): the live ones."""

    @abstractmethod
    def read_settings(self, settings: bytes) -> Any:
        """Hyper-parameters as a worker sent them, ready for `step`."""

    @abstractmethod
    def step(self, gradient: NDArray[Any], present: bytes, settings: Any) -> None:
        """One update. gradient: shape (n,); present: a byte for each parameter, 0 where it has no
        gradient, or empty where all have; settings: the worker's, or None for the recipe's."""

    @abstractmethod
    def save(self) -> bytes:
        """The optimizer's state: for a snapshot, and for workers that ask for it."""

    @abstractmethod
    def restore(self, state: bytes) -> None:
        """Take back what `save` gave, after `build`."""
