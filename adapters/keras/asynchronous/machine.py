"""What a backend of Keras does between its tensors and flat arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Local = Callable[..., tuple[Any, Sequence[Any]]]
"""From a batch to what is told of it, and the gradients, None where there is none."""


class Machine(ABC):
    """A backend's way with parameters end to end, shape (n,)."""

    @abstractmethod
    def update(self, optimizer: Any, variables: Sequence[Any]) -> Callable[[Any, bytes], Any]:
        """A function that applies a flat gradient and returns the flat parameters. Its second
        argument has a byte for each variable, 0 where it has no gradient, or is empty."""

    @abstractmethod
    def load(self, variables: Sequence[Any], counter: Any) -> Callable[[Any, int], None]:
        """A function that puts flat parameters into the variables, and a number into the
        counter."""

    @abstractmethod
    def flat(self, variables: Sequence[Any]) -> NDArray[Any]:
        """The variables' values end to end."""

    @abstractmethod
    def differentiate(
        self, local: Local, variables: Sequence[Any], *, eager: bool, one_length: bool
    ) -> Callable[[tuple[Any, ...], NDArray[Any]], tuple[Any, bytes]]:
        """`local`, as the backend runs it best: a function of a batch that writes the gradients
        into a flat array, and returns what was told and a byte for each gradient as in `update`.

        variables: what the gradients are of; eager: as Python runs it; one_length: whether all
            batches have as many samples.
        """

    @abstractmethod
    def tensors(self, batch: Any) -> Any:
        """A batch of arrays as the backend's tensors."""

    @abstractmethod
    def offset_generators(self, rank: int) -> None:
        """Move the backend's generators by the rank; rank 0's stay."""
