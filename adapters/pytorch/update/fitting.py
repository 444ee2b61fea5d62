"""`accumulate="auto"` in the explicit step: where memory runs out, all ranks begin an update again
in twice as many micro-batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Protocol, final

import torch
from torch import nn
from torch.optim import Optimizer

from dream._errors import ConfigurationError, Unsupported, WorkerFailed
from dream._log import logger
from dream.adapters.pytorch.data.reading.rows import rows_of
from dream.adapters.pytorch.errors import let_go, ran_out
from dream.adapters.pytorch.private import BatchNorm, NormBase, to_local, version_of
from dream.adapters.pytorch.randomness.current import current, set_state, state
from dream.adapters.pytorch.update.accumulation import Updates
from dream.data import generators
from dream.update import fitting
from dream.update.fitting import RanOut

Batch = tuple[Any, ...]


def refused_loop() -> ConfigurationError:
    return ConfigurationError(
        "Where the number of micro-batches follows memory, a step is one call, which can be made "
        "again. Received: accumulate='auto' and a model called in training by a loop of its own "
        "lines. Make step = strategy.train_step(model, loss, optimizer) and call step(x, y), or "
        "give a number, as in accumulate=4."
    )


def free() -> None:
    """Have memory that nothing holds be there for all."""
    gc.collect()  # graphs, of what refers to itself too
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class CutsBatch(Protocol):
    """Cuts a batch into `most` micro-batches."""

    most: int

    def __call__(self, batch: Batch) -> Sequence[tuple[Batch, Any]]: ...


class MicroPasses(Protocol):
    """A model's, which may end before their time."""

    def run(self, batch: Batch, weight: Any, *, first: bool, last: bool) -> None: ...

    def give_up(self, word: float) -> NoReturn:
        """Tell the other ranks that this one's memory ran out. Raises `RanOut`, as on them."""

    def told(self) -> torch.Tensor: ...


@final
class FittingStep:
    """The explicit step of one model, begun again where memory runs out."""

    def __init__(
        self,
        model: nn.Module,
        passes: MicroPasses,
        optimizer: Optimizer,
        cut: CutsBatch,
        updates: Updates,
    ) -> None:
        self._model, self._passes, self._optimizer = model, passes, optimizer
        self._cut, self._updates = cut, updates
        self._before = BuffersBefore(model)
        updates.leave_to_step()

    def __call__(self, *batch: Any) -> torch.Tensor:
        self._before.note()
        while not self._computed(batch):
            self._before.put_back()
            free()
            self._cut.most *= 2
            logger.info("%s", fitting.now(self._cut.most))
        self._optimizer.step()
        return self._passes.told()

    def _computed(self, batch: Batch) -> bool:
        """Leave the global gradient; return whether all ranks have come through."""
        own: Exception | None = None
        try:
            try:
                self._compute(batch)
                return True
            except Exception as error:
                if not ran_out(error):
                    raise
                own = error
                let_go(error)
            self._optimizer.zero_grad(set_to_none=True)
            self._passes.give_up(fitting.word(final=self._is_smallest(batch)))
        except RanOut as told:
            if not told.final:
                return False
        if own is None:
            raise WorkerFailed(fitting.elsewhere(self._cut.most))
        own.add_note(fitting.hint(self._cut.most))
        raise own

    def _compute(self, batch: Batch) -> None:
        self._updates.begin_whole()
        self._optimizer.zero_grad(set_to_none=True)
        micros = self._cut(batch)
        for index, (micro, part) in enumerate(micros):
            if index:
                self._before.begin_another()
            self._passes.run(micro, part, first=index == 0, last=index == len(micros) - 1)
            if len(micros) > 1:
                self._before.compare(first=index == 0)

    def _is_smallest(self, batch: Batch) -> bool:
        return self._cut.most >= (rows_of(batch) or 1)


@final
class BuffersBefore:
    """What an update finds, beside gradients: generators, and the buffers of its model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._copies: dict[str, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._after: dict[str, torch.Tensor] = {}
        self.look()

    def look(self) -> None:
        """See which parts of the model an update may change."""
        named = [*self._model.named_modules()]
        self._norms = [(n, m) for n, m in named if isinstance(m, (BatchNorm, NormBase))]
        self._holders = [(n, m) for n, m in named if any(True for _ in m.buffers(recurse=False))]

    def note(self) -> None:
        """An update begins. A buffer that nobody has written into since is not copied again."""
        self._refuse_batch_norm()
        self._torch, self._forks = state(), current.forks
        self._python, self._numpy = generators.python_state(), generators.numpy_state()
        copies = {}
        for name, buffer in self._buffers():
            known = self._copies.get(name)
            if known is None or known[0] is not buffer or known[1] != version_of(buffer):
                known = buffer, version_of(buffer), to_local(buffer).detach().clone()
            copies[name] = known
        self._copies = copies

    def put_back(self) -> None:
        """It is begun again."""
        self.look()
        self._refuse_batch_norm()
        set_state(self._torch)
        current.forks = self._forks
        self.begin_another()

    def begin_another(self) -> None:
        """A micro-batch draws what a whole batch does, and finds the same buffers. Torch's own
        generator is set back by those that draw for a batch's rows."""
        generators.go_on_in_python(self._python)
        generators.go_on_in_numpy(self._numpy)
        with torch.no_grad():
            for name, value in self._changed().items():
                before = self._copies.get(name)
                if before is None or before[2].shape != value.shape:
                    raise self._refused(name)
                value.copy_(before[2])

    def compare(self, *, first: bool) -> None:
        """Refuse buffers that are not alike after each micro-batch, whose values would be those of
        none or of the last."""
        changed = self._changed()
        if first:
            self._after = {name: value.clone() for name, value in changed.items()}
        same = changed.keys() == self._after.keys()
        if same and all(torch.equal(v, self._after[name]) for name, v in changed.items()):
            return
        raise self._refused(", ".join(changed))

    def _refused(self, names: str) -> Unsupported:
        return Unsupported(
            "A buffer that a model's call writes from its batch is another one in micro-batches. "
            f"Received: accumulate='auto', and {names} of {type(self._model).__name__}. Give a "
            "number of micro-batches, as in accumulate=4, if that is what you want."
        )

    def _refuse_batch_norm(self) -> None:
        for name, norm in self._norms:
            if norm.training or not getattr(norm, "track_running_stats", True):
                raise Unsupported(
                    "What is normalised by the statistics of a batch is another model in "
                    f"micro-batches. Received: accumulate='auto' and {name or 'the model'} "
                    f"({type(norm).__name__}) in training. Use GroupNorm or LayerNorm, or call its "
                    "eval(); or give a number of micro-batches, as in accumulate=4, if that is "
                    "what you want."
                )

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        for prefix, holder in self._holders:
            yield from holder.named_buffers(prefix, recurse=False)

    def _changed(self) -> dict[str, torch.Tensor]:
        """The buffers that were written into since the update began, and their values."""
        found = {}
        for name, buffer in self._buffers():
            known = self._copies.get(name)
            if known is None or known[0] is not buffer or known[1] != version_of(buffer):
                found[name] = to_local(buffer).detach()
        return found
