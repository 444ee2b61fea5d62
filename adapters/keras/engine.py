"""What a backend and a reduction offer to the backend-neutral part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dream._spec import Framework
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.update.exchange import Exchange
from dream.collectives import Communicator
from dream.mixed.resync import Resyncs
from dream.update.update import Knobs

SHARE = "dream.share"
BATCH = "dream.batch"
"""Keys of a dealt element: {SHARE: (count, total, digest), BATCH: what the model is given}.

count, total: this part's samples and the global batch's. digest: a number below 2**23 made of
the global batch, so that ranks can tell when they read different ones.
"""


class Engine(ABC):
    """How global batches are dealt to `parts` replicas, and what they compute is added up.

    pooled: this process drives all the parts itself, by one step on every device.
    knobs: how an update is made. honours: the values of each that can be; none for any.
    exchange: how the parts' gradients become one; None for their sum.
    resyncs: what keeps ranks of two frameworks together; None where all are of one.
    """

    rank: int
    parts: int
    seed: int
    pooled: bool
    resyncs: Resyncs | None
    communicator: Communicator
    knobs: Knobs = Knobs()
    exchange: Exchange | None = None
    honours: Mapping[str, Collection[object]] = {
        "accumulate": (),
        "clip_norm": (),
        "clip_value": (),
        "precision": (),
        "sync_batch_norm": (),
        "recompute": (),
        "compression": (),
        "op": (),
        "autotune": (),
    }

    @property
    def steps(self) -> bool:
        """Whether the step of fit is dream's: parts add up, or a batch comes in micro-batches."""
        return self.parts > 1 or self.knobs.accumulates

    @property
    def synchronises(self) -> bool:
        """Whether BatchNorm sees the samples of all parts."""
        return self.parts > 1 and not self.mixed and self.knobs.synchronises

    @property
    def mixed(self) -> bool:
        """Whether some ranks are of another framework."""
        return self.resyncs is not None

    @property
    @abstractmethod
    def framework(self) -> Framework: ...

    @abstractmethod
    def total(self, tensors: Sequence[Any]) -> list[Any]:
        """The sum over the parts of each tensor, on every part; in a step, compiled or not."""

    @abstractmethod
    def weigh(self, tensors: Sequence[Any], weight: Any) -> list[Any]:
        """Each tensor times `weight`; what weighs nothing becomes exactly 0, nan too."""

    @abstractmethod
    def keep(self, share: Any, tensors: Sequence[Any]) -> list[Any]:
        """The tensors as they are on a part with samples, zeros on a part with none."""

    @abstractmethod
    def rows(self, batch: Any) -> Any:
        """How many samples a part's batch has."""

    @abstractmethod
    def micros(self, rows: Any) -> Any:
        """In how many micro-batches so many samples come: at least one, and none empty where there
        are samples."""

    @abstractmethod
    def ratio(self, some: Any, rows: Any) -> Any:
        """some / rows; 1 where there are no rows."""

    @abstractmethod
    def fold(
        self, times: Any, compute: Callable[[Any], list[Any]], like: Sequence[Any]
    ) -> list[Any]:
        """The sums of what `compute` gives for 0 to times - 1, one after the other."""

    @abstractmethod
    def copies(self, variables: Sequence[Any]) -> list[Any]:
        """The variables' values, which later assignments leave alone."""

    @abstractmethod
    def check_digests(self, share: Any, digests: Any) -> None:
        """Raise `Desynchronized` where the parts read different batches.

        digests: shape (parts,), each part's.
        """

    @abstractmethod
    def moments(
        self, x: Any, axes: Sequence[int], mask: Any, present: Any, worth: Any
    ) -> tuple[Any, Any]:
        """Mean and variance of x over `axes` and all parts; in a step.

        mask: which places count; None for all. present: 0 where this part's samples do not.
        worth: what this part's gradients are multiplied by later.
        """

    @abstractmethod
    def differentiable(self, x: Any) -> bool:
        """Whether x is a tensor that gradients flow through."""

    @abstractmethod
    def recompute(self, run: Callable[..., Sequence[Any]], tensors: Sequence[Any]) -> Sequence[Any]:
        """`run(*tensors)`, which backward calls again in place of keeping its values."""

    @abstractmethod
    def one_hot(self, share: Any) -> list[Any]:
        """What `check_digests` wants the sum of: a float32 tensor of shape (parts,) with this
        part's digest in its own place; nothing where one process reads for all."""

    @abstractmethod
    def arrays(self, source: Arrays) -> Iterable[Any]:
        """Elements of arrays, dealt: what the backend's trainer iterates over, pass after pass."""

    @abstractmethod
    def batches(self, source: Batches) -> Iterable[Any]:
        """The same of a source that yields global batches itself."""

    @abstractmethod
    def example(self, source: Arrays | Batches) -> Any:
        """Something with the structure, dtypes and inner dims of what the model is given."""

    @abstractmethod
    def creating(self) -> AbstractContextManager[Any]:
        """Where variables are created so that every part has its copy."""

    @abstractmethod
    def looping(self) -> AbstractContextManager[Any]:
        """Around fit, evaluate and predict as a whole."""

    @abstractmethod
    def stepping(self) -> AbstractContextManager[Any]:
        """Around a step's forward pass and loss."""

    @abstractmethod
    def applying(self) -> AbstractContextManager[Any]:
        """Around the application of gradients."""

    @abstractmethod
    def outside(self) -> AbstractContextManager[Any]:
        """Where variables can be read, in the midst of a step that is being compiled too."""

    @abstractmethod
    def adopt_optimizer(self, optimizer: Any) -> None:
        """Change on the instance what the backend's optimizers do across devices."""

    @abstractmethod
    def adopt_model(self, model: Any) -> None:
        """Change on the instance what the backend's trainer does across devices."""

    @abstractmethod
    def take_over(self, model: Any) -> None:
        """The model is about to be trained by fit: whatever else had hold of it lets go."""

    @abstractmethod
    def offset_seed(self, state: Any) -> None:
        """Move a seed generator's state, a variable of shape (2,), by the part it is used on."""

    @abstractmethod
    def offset_generators(self) -> None:
        """Move the framework's own generators by the rank; rank 0's stay."""
