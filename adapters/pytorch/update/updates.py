"""Which micro-batch of which update a loop is at."""

from __future__ import annotations

from typing import final
from weakref import WeakSet

from torch.optim import Optimizer

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.pytorch.update.held import Held
from dream.data.partition import Share


@final
class Updates:
    """Follows forward passes, batch by batch.

    most: micro-batches to an update. number: of the update. held: what waits for its end.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.number = 0
        self.held = Held()
        self._share: Share | None = None
        self._gates: WeakSet[Gate] = WeakSet()
        self._cut_by_step = False

    def gate(self, optimizer: Optimizer) -> Gate:
        """What an optimizer's steps pass through."""
        gate = Gate(self, optimizer)
        self._gates.add(gate)
        return gate

    def micros(self) -> int:
        """Micro-batches that a loader cuts a share into, at most."""
        return 1 if self._cut_by_step else self.most

    def leave_to_step(self) -> None:
        """An explicit step was made, which takes whole shares and cuts them itself."""
        self._cut_by_step = True

    def begin(self, share: Share | None) -> bool:
        """A forward pass on a loader's micro-batch, or on what a loop made of it (None). Whether
        the gradient is complete with it."""
        if share is None:
            return self._share is None or self._share.last
        if share is not self._share:
            if share.micro == 0:
                self._start()
            else:
                self._check_follows(share)
                self.held.check()
            self._share = share
        return share.last

    def begin_whole(self) -> None:
        """An explicit step, which is an update by itself."""
        self._start()
        self._share = Share(0, 0, 1)

    @property
    def share(self) -> Share:
        """The micro-batch that the last forward pass was on."""
        if self._share is None:
            raise Unsupported(
                "Only the batches of dream's loaders come in micro-batches. Received: "
                f"accumulate={self.most} and a step on data of another source. Take the batches "
                "from a DataLoader made in the block, or use strategy.train_step."
            )
        return self._share

    @property
    def waiting(self) -> bool:
        """Whether the gradient of the last forward pass is not complete."""
        return self._share is not None and not self._share.last

    @property
    def open(self) -> bool:
        """Whether an optimizer holds an incomplete gradient."""
        return any(gate.open for gate in self._gates)

    def _start(self) -> None:
        self.number += 1
        self.held.clear()
        dropped = [gate for gate in self._gates if gate.open]
        for gate in dropped:
            gate.drop()
        if dropped:
            logger.info("an update was left before its last micro-batch, and dropped")

    def _check_follows(self, share: Share) -> None:
        last = self._share
        if last is None or (last.micro + 1, last.micros) != (share.micro, share.micros):
            at = "none" if last is None else f"{last.micro + 1} of {last.micros}"
            raise ConfigurationError(
                "The micro-batches of an update come in order, each once. Received: "
                f"micro-batch {share.micro + 1} of {share.micros} after {at}. Use batches as the "
                "loader yields them."
            )


@final
class Gate:
    """Of one optimizer: which of its steps are made.

    open: its gradient is of some of an update's micro-batches.
    """

    def __init__(self, updates: Updates, optimizer: Optimizer) -> None:
        self._updates = updates
        self._optimizer = optimizer
        self._at: tuple[int, int] = (0, 0)  # update, micro-batch
        self.open = False

    def passes(self) -> bool:
        """A step is called. Whether it is that of the update."""
        share, number = self._updates.share, self._updates.number
        before = (number, share.micro - 1)
        if self._at != before and (share.micro or self._at == (number, 0)):
            raise ConfigurationError(
                "An optimizer steps once for each micro-batch; it acts on the last of an update. "
                f"Received: {type(self._optimizer).__name__}.step at micro-batch "
                f"{share.micro + 1} of {share.micros}, after a step at {self._at[1] + 1} of update "
                f"{self._at[0]}, now {number}. Call step after each backward, on a new batch each "
                "time; leave accumulate out where the loop accumulates by itself."
            )
        self._at = number, share.micro
        self.open = not share.last
        return share.last

    def drop(self) -> None:
        """Forget the gradient of an update that was left."""
        self.open = False
        type(self._optimizer).zero_grad(self._optimizer)
