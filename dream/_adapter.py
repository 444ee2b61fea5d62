"""The interface that every adapter implements, and the communicator it offers.

An adapter is one strategy in one framework. The registry finds it by (framework, name); the
`Strategy` that the user holds passes everything on to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dream._spec import Framework, Spec
from dream._topology import Cluster, Topology

Tensor = Any
"""A tensor of the caller's kind: torch.Tensor, tf.Tensor or numpy.ndarray."""

Op = Literal["sum", "mean", "min", "max"]
Step = Callable[..., Any]
Metric = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for, checked and made whole; all that an adapter is built from.

    reduction: as asked for; the adapter turns "auto" into what fits its device.
    devices: per process; None for the framework's default.
    """

    spec: Spec
    framework: Framework
    cluster: Cluster
    reduction: str
    devices: int | None
    seed: int
    options: Mapping[str, object]


class Communicator(ABC):
    """What the ranks of a job do together, on torch, TensorFlow and NumPy tensors alike.

    Every rank makes the same calls in the same order. Inputs are never changed; the result is
    of the caller's kind, dtype and shape.
    """

    @property
    @abstractmethod
    def rank(self) -> int: ...

    @property
    @abstractmethod
    def world_size(self) -> int: ...

    @abstractmethod
    def all_reduce(self, x: Tensor | Sequence[Tensor], op: Op = "mean") -> Any:
        """Every rank's `x` combined, on every rank.

        x: a tensor of any shape, the same shape and dtype on every rank; or a list of tensors,
            which travel together and come back as a list.
        op: "mean", "sum", "min" or "max". A mean of integers raises `Unsupported`.
        """

    @abstractmethod
    def broadcast(self, x: Tensor | Sequence[Tensor], root: int = 0) -> Any:
        """`root`'s `x`, on every rank. x: a tensor or a list of tensors, alike on every rank."""

    @abstractmethod
    def barrier(self) -> None:
        """Return once every rank has called it."""

    @abstractmethod
    def all_gather_object(self, value: object) -> list[Any]:
        """Every rank's picklable value, in rank order, on every rank. For small things said
        now and then (layouts, figures), not for tensors."""

    @abstractmethod
    def broadcast_object(self, value: object, root: int = 0) -> Any:
        """`root`'s picklable value, on every rank."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the transport. Idempotent."""


class Adapter(ABC):
    """One strategy in one framework."""

    @property
    @abstractmethod
    def topology(self) -> Topology: ...

    @property
    @abstractmethod
    def communicator(self) -> Communicator: ...

    @abstractmethod
    def enter(self) -> None:
        """Start of the block: from here on, what is created is distributed."""

    @abstractmethod
    def exit(self) -> None:
        """End of the block: classes and modules are as they were; objects stay distributed."""

    @abstractmethod
    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        """Models, optimizers and data in; distributed out, in order."""

    @abstractmethod
    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        """A callable on this rank's batch: it trains and returns the global mean loss."""

    @abstractmethod
    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """Means over every sample of `data`, each used once, the same on every rank."""

    @abstractmethod
    def weigh(self, loss: Any, count: Any) -> Any:
        """`loss`, a mean over `count` things on this rank, scaled so that the gradient is that
        of the mean over the things of all ranks."""
