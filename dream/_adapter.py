"""The interface that every adapter implements.

An adapter is one strategy in one framework. The registry finds it by (framework, name); the
`Strategy` that the user holds passes everything on to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dream._topology import Cluster, Topology
from dream.collectives import Communicator
from dream.data.partition import rows_of_all
from dream.mixed.resync import Resyncs
from dream.parameter_server.staleness import Staleness
from dream.strategies import registry
from dream.strategies.spec import Framework, Spec
from dream.update.update import UpdateOptions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dream.checkpoint.checkpointer import Checkpointer

Step = Callable[..., Any]
Metric = Callable[[Any, Any], Any]
Loss = Callable[..., Any]
"""The user's: from (prediction, target) the mean over a batch."""
Weight = Callable[..., Any]
"""The user's: from a batch how many things, or how much, its loss is the mean over."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for, checked and made whole; all that an adapter is built from.

    reduction: as asked for; the adapter turns "auto" into what fits its device.
    devices: per process; None for the framework's default.
    seed: fixes the order of shuffled data; None leaves the script's own. randomness: "global" or
        "local" draws in a model's call.
    resyncs: what keeps ranks of two frameworks together; None where all are of one.
    """

    spec: Spec
    framework: Framework
    cluster: Cluster
    reduction: str
    devices: int | None
    seed: int | None
    options: Mapping[str, object]
    resyncs: Resyncs | None = None
    randomness: str = "global"

    @property
    def mixed(self) -> bool:
        """Whether some ranks are of another framework."""
        return self.resyncs is not None

    @property
    def transport(self) -> str:
        """The reduction; where "auto" leaves no choice, the only one."""
        choices = self.spec.reductions[self.framework]
        return choices[0] if self.reduction == "auto" and len(choices) == 1 else self.reduction

    def begin_tuning(self) -> Callable[[], None]:
        """Have the ring tune itself where that is asked for, before it starts. Returns what says,
        at the block's end, what it has found out."""
        if not UpdateOptions.of(self.options).autotune or self.cluster.alone:
            return lambda: None
        tuning = registry.load(registry.TUNING)(self.cluster, self.transport)
        return (lambda: None) if tuning is None else tuning.tell


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
    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
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

    @abstractmethod
    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        """Every parameter and buffer of a model by name, whole, the same on every rank."""

    @property
    def savers(self) -> Communicator:
        """Those that write checkpoints together, and read them."""
        return self.communicator

    @abstractmethod
    def checkpointer(self, model: Any) -> Checkpointer:
        """What saves and loads such a model, its optimizers and the generators."""

    def share(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """This rank's rows of the tensors of a whole batch."""
        among = self.communicator
        rows_of_all(tensors)
        return tuple(x[among.rank :: among.world_size] for x in tensors)

    def loss_weight(self) -> float | None:
        """What the loss of this rank's last forward pass counts for among those of all ranks, so
        that their mean is that of the global batch; 1 for an equal share, None where it is global
        itself once it is differentiated."""
        return 1.0


class Asynchronous(Adapter):
    """A strategy whose workers do not wait for one another."""

    @abstractmethod
    def staleness(self) -> Staleness:
        """How stale updates were, and what became of the workers, over the job so far."""


class Coordinating(Adapter):
    """A strategy whose one script hands out work to the job's workers."""

    @abstractmethod
    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Hand a function out, and return what `fetch` takes."""

    @abstractmethod
    def join(self) -> None:
        """Wait until all that was handed out is done."""

    @abstractmethod
    def fetch(self, value: Any) -> Any:
        """What functions that were handed out gave, waited for, in the same structure."""
