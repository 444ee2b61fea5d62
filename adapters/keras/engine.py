"""The interface of a backend to Keras's loops: batches dealt to replicas, tensors added up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy.typing import NDArray

from dream._adapter import Plan
from dream._errors import Unsupported
from dream.adapters.keras.data.share import BatchShare
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.adapters.keras.randomness.draws import ShareRows
from dream.adapters.keras.randomness.start import Generators
from dream.adapters.keras.update.auto_recompute import Chooser
from dream.adapters.keras.update.exchange import PartsExchange
from dream.adapters.keras.update.pace import KerasPace, StepClock
from dream.collectives import Communicator
from dream.data.partition import Divided, Division, Share
from dream.mixed.resync import Resyncs
from dream.strategies.spec import Framework
from dream.update.update import UpdateOptions

Array = NDArray[Any]
LossGradients = Callable[[Sequence[Array]], Sequence[Array]]
"""From a model's outputs the gradient of a loss by each, of the same shapes."""


class Engine(ABC):
    """Deals global batches to `parts` replicas, and adds up what they compute.

    pooled: this process drives several parts itself, by one step on every device: all there are, or
        as many as every other rank.
    update_options: how an update is made. honours: the values of each that can be; none for any.
    whole_loops: whether a loop of the user's own may compute whole batches, on every part.
    draws_locally: whether each part is asked to draw for itself.
    divided: how batches are divided among the parts, as it is now.
    exchange: how the parts' gradients become one; None for their sum. pace: has shares follow the
        ranks' speeds; None where they stay.
    resyncs: what keeps ranks of two frameworks together; None where all are of one.
    fits: whether a step is begun again in smaller parts when memory runs out. chooses: whether
        it takes `recompute="auto"`. parted: whether each rank reads its own part of what fit trains
        on. over: all of them have. readers: all that read the same data, parts of their own or not.
    generators: what Keras draws the order of samples from. handed: the share that tensors are of
        which a loader dealt; or None.
    """

    rank: int
    parts: int
    divided: Divided
    pace: KerasPace | None = None
    seed: int | None
    pooled: bool = False
    whole_loops: bool = False
    draws_locally: bool = False
    resyncs: Resyncs | None
    communicator: Communicator
    readers: Communicator
    generators: Generators
    update_options: UpdateOptions = UpdateOptions()
    exchange: PartsExchange | None = None
    fits = chooses = False
    parted = over = False
    handed: Callable[[Sequence[Any]], Share | None] = staticmethod(lambda _: None)
    honours: Mapping[str, Collection[object]] = dict.fromkeys(
        (
            "accumulate", "clip_norm", "clip_value", "precision", "sync_batch_norm", "recompute",
            "memory_budget", "compression", "op", "autotune", "strict",
        ),
        (),
    )  # fmt: skip

    def _deal_to_ranks(self, communicator: Communicator, plan: Plan) -> None:
        """Have each rank of a communicator be a part."""
        self.communicator = self.readers = communicator
        self.rank = communicator.rank
        self.parts = communicator.world_size
        self.divided = Divided(Division.asked(self.parts, plan.options.get("shares")))
        self.seed = plan.seed
        self.resyncs = plan.resyncs

    def _follow_speeds(self, clock: StepClock) -> None:
        """Have shares follow the ranks' speeds. They are runs of each batch from the first on."""
        self.divided.now = Division(self.parts, (1,) * self.parts)
        self.pace = KerasPace(self.communicator, self.divided, clock)

    @property
    def division(self) -> Division:
        """How the next global batch is divided among the parts."""
        return self.divided.now

    @property
    def steps(self) -> bool:
        """Whether the step of fit is dream's: parts add up, or a batch comes in micro-batches."""
        return self.parts > 1 or self.update_options.accumulates

    @property
    def synchronises(self) -> bool:
        """Whether BatchNorm sees the samples of all parts."""
        return self.parts > 1 and not self.mixed and self.update_options.synchronises

    @property
    def mixed(self) -> bool:
        """Whether some ranks are of another framework."""
        return self.resyncs is not None

    @property
    def several_processes(self) -> bool:
        return self.parts > 1 and not self.pooled

    @property
    def here(self) -> Sequence[int]:
        """The parts that are in this process."""
        return [self.rank]

    @property
    @abstractmethod
    def framework(self) -> Framework: ...

    # Tensors, in a step, compiled or not.

    @abstractmethod
    def total(self, tensors: Sequence[Any]) -> list[Any]:
        """Sum each tensor over the parts, on every part."""

    def dense(self, gradients: Sequence[Any], optimizer: Any) -> list[Any]:
        """Return gradients as whole tensors, where a framework has other forms of them."""
        del optimizer
        return list(gradients)

    @abstractmethod
    def weigh(self, tensors: Sequence[Any], weight: Any) -> list[Any]:
        """Multiply each tensor by `weight`; what weighs nothing becomes exactly 0, nan too."""

    @abstractmethod
    def keep(self, share: BatchShare, tensors: Sequence[Any]) -> list[Any]:
        """Return the tensors as they are on a part with samples, zeros on a part with none."""

    @abstractmethod
    def copies(self, variables: Sequence[Any]) -> list[Any]:
        """Copy the variables' values, which later assignments leave alone."""

    def written(self, tensor: Any) -> bool:
        """Return whether a tensor has been written to in place since it was made."""
        del tensor
        return False

    @abstractmethod
    def rows(self, batch: Any) -> Any:
        """Count the samples of a part's batch."""

    @abstractmethod
    def micros(self, rows: Any) -> Any:
        """Return in how many micro-batches so many samples come: one at least, and none empty."""

    def fitted(self, model: Any, compute: Callable[[], Any], rows: Any) -> Any:
        """Return what `compute` gives of a step on so many rows; where memory runs out on any part,
        once it has fitted on all."""
        del model, rows
        return compute()

    @abstractmethod
    def ratio(self, some: Any, rows: Any) -> Any:
        """Return some / rows; 1 where there are no rows."""

    @abstractmethod
    def fold(
        self, times: Any, compute: Callable[[Any], list[Any]], like: Sequence[Any]
    ) -> list[Any]:
        """Sum what `compute` gives for 0 to times - 1, one after the other."""

    @abstractmethod
    def moments(
        self, x: Any, axes: Sequence[int], mask: Any, present: Any, worth: Any
    ) -> tuple[Any, Any]:
        """Return the mean and variance of x over `axes` and all parts.

        mask: which places count; None for all. present: 0 where this part's samples do not.
        worth: what this part's gradients are multiplied by later.
        """

    @abstractmethod
    def differentiable(self, x: Any) -> bool:
        """Whether x is a tensor that gradients flow through."""

    @abstractmethod
    def recompute(
        self, run: Callable[..., Sequence[Any]], tensors: Sequence[Any], layers: Sequence[Any]
    ) -> Sequence[Any]:
        """Call `run(*tensors)`, and again in backward in place of keeping its values. layers: those
        that take part."""

    def chooser(self, model: Any) -> Chooser:
        """Make what chooses the layers of a model that are computed again."""
        raise NotImplementedError

    def note_batch(self, data: Any, size: int | None) -> None:
        """Note how many samples a batch of fit has. size: None where only the data may tell."""
        return

    @abstractmethod
    def one_hot(self, share: BatchShare) -> list[Any]:
        """Return what `same_batch` wants the sum of: a float32 tensor of shape (parts,) with
        this part's digest in its own place; nothing where one process reads for all."""

    @abstractmethod
    def same_batch(self, share: BatchShare, digests: Any, tensors: Sequence[Any]) -> list[Any]:
        """Return tensors that there are only where the parts have read one batch; else
        `Desynchronized` is raised.

        digests: shape (parts,), each part's.
        """

    # Data.

    @abstractmethod
    def arrays(self, source: Arrays) -> Iterable[Any]:
        """Deal arrays: what the backend's trainer iterates over, pass after pass."""

    @abstractmethod
    def batches(self, source: Batches) -> Iterable[Any]:
        """Deal a source that yields global batches itself."""

    def placed(self, elements: Sequence[Any]) -> Any:
        """Return dealt elements, one for each part that is here, as a step takes them."""
        (only,) = elements
        return only

    def mine(self, elements: Sequence[Any]) -> Any:
        """Return the element of the part that takes the step, of those for each part that is
        here."""
        (only,) = elements
        return only

    def held_here(self, whole: Any) -> Any:
        """Return what the part that takes the step is to hold of a sum, such that the parts in this
        process add up to it."""
        return whole

    def of_any_length(self, batch: Any) -> Any:
        """Return a batch as one of those whose lengths a step does not know as it is compiled."""
        return batch

    @abstractmethod
    def example(self, source: Arrays | Batches) -> Any:
        """Return something with the structure, dtypes and inner dims of what the model is given."""

    def met(self, count: Any, more: Any) -> BatchShare:
        """Return the share of a batch of its own part, in a step. more: whether another follows."""
        raise NotImplementedError

    def own_of(self, element: Any) -> tuple[Any, BatchShare]:
        """Return this part's samples of a batch that comes whole, in a step, and its share."""
        raise NotImplementedError

    def redivided(self) -> None:
        """Shares are others from the next batch on."""
        return

    # Scopes, and changes on the instance: nothing where the backend needs none.

    def creating(self) -> AbstractContextManager[Any]:
        """Open the scope in which variables are created so that every part has its copy."""
        return nullcontext()

    def looping(self) -> AbstractContextManager[Any]:
        """Surround fit, evaluate and predict as a whole."""
        return nullcontext()

    def stepping(self) -> AbstractContextManager[Any]:
        """Surround a step's forward pass and loss."""
        return nullcontext()

    def after(self, batch: Any) -> AbstractContextManager[Any]:
        """Surround what must not happen in a step whose batch turns out to be none."""
        del batch
        return nullcontext()

    def applying(self) -> AbstractContextManager[Any]:
        """Surround the application of gradients."""
        return nullcontext()

    def outside(self) -> AbstractContextManager[Any]:
        """Open the scope in which variables can be read, while a step is compiled too."""
        return nullcontext()

    def replica(self) -> int:
        """Return which of this process's devices takes the step that is going on."""
        return 0

    def apart(self, function: Callable[[], Any]) -> Any:
        """Call a function that takes gradients, while a step is compiled too."""
        return function()

    def alone(self, model: Any, predict: Callable[[], Any]) -> Any:
        """Have one device of this process predict."""
        del model
        return predict()

    def adopt_optimizer(self, optimizer: Any) -> None:
        """Change on the instance what the backend's optimizers do across devices."""
        return

    def adopt_model(self, model: Any) -> None:
        """Change on the instance what the backend's trainer does across devices."""
        return

    def averaged(self, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
        """Return whether a loop of the user's own has gradients that are global already."""
        del gradients, variables
        return False

    def common(self, gradients: Sequence[Any], received: str) -> list[Any]:
        """Return gradients of a loop of the user's own, the same bits on every part; they are those
        of a batch that every part has whole. Raises where the parts' are of different batches.
        received: what was done, in the error's words."""
        raise NotImplementedError

    def everywhere(self, update: Callable[[], None]) -> None:
        """Make an update, outside a step, on all parts that are here."""
        update()

    def on_each(self, variable: Any) -> Sequence[Any]:
        """Return the copies of a variable, one for each part that is here."""
        return [variable]

    def norms_of(self, model: Any) -> Sequence[Any]:
        """Return normalisations by a batch within a model that are the framework's own."""
        del model
        return ()

    def synchronise_norms(self, model: Any, moments: Callable[[], Any]) -> None:
        """Have those take a batch's mean and variance from what `moments` gives, in a step."""
        return

    def take_over(self, model: Any) -> None:
        """Release a model that fit, or a step of it, is to train from what else has hold of it."""
        return

    def rehearse(self, step: Callable[[Any], None], batch: Any) -> None:
        """Have a step make the variables that it makes when it is first taken, without its being
        taken. batch: KerasTensors."""
        del step, batch
        raise Unsupported(
            f"A step cannot be tried before it is taken. Received: Keras on {self.framework}."
        )

    def noting_draws(self, model: Any) -> AbstractContextManager[list[bool]]:
        """Surround predict: the list is not empty once the framework's functions have drawn."""
        del model
        return nullcontext([])

    def trying(self, model: Any, rows: slice, total: int) -> AbstractContextManager[Any]:
        """Surround a step that is tried on rows of a batch: the framework's own functions draw for
        the whole, of which it uses its rows. What it leaves in the framework's things is undone."""
        del model, rows, total
        return nullcontext()

    @abstractmethod
    def rows_of(self, share: BatchShare) -> ShareRows:
        """Return the rows by which Keras's functions draw for a share whose first one is known."""

    @abstractmethod
    def drawing(self, share: BatchShare) -> AbstractContextManager[Any]:
        """Surround a step on a dealt share: what Keras draws inside is drawn for the global batch,
        of which this part uses its rows."""
