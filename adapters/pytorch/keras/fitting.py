"""`accumulate="auto"` for Keras models on torch: where memory runs out, all ranks begin a step
again in twice as many micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final
from weakref import WeakKeyDictionary

import torch

from dream._errors import Unsupported, WorkerFailed
from dream._log import logger
from dream.adapters.keras import consistency, private
from dream.adapters.keras.update import batch_norm
from dream.adapters.pytorch.errors import let_go, ran_out
from dream.adapters.pytorch.randomness.current import go_on_from, packed
from dream.adapters.pytorch.update.fitting import free
from dream.data import generators
from dream.update import fitting
from dream.update.fitting import RanOut

T = TypeVar("T")


@final
class FittingSteps:
    """The steps of one strategy's models. most: micro-batches that a share comes in now."""

    def __init__(self, total: Callable[[Sequence[Any]], list[Any]]) -> None:
        """total: sums over the ranks."""
        self.most = 1
        self._total = total
        self._drawing: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()

    def run(self, model: Any, compute: Callable[[], T], rows: int) -> T:
        """Compute a step's gradients from a share of so many rows, as often as it takes. Ranks ask
        one another before they add up."""
        self._check(model)
        before = _Before(model)
        while True:
            found, own = self._attempt(compute)
            word = fitting.WENT_WELL if own is None else fitting.word(final=self.most >= rows)
            try:
                fitting.hear(float(self._total([torch.tensor(word)])[0]))
            except RanOut as told:
                found = []
                self._go_on(own, final=told.final)
                before.put_back()
            else:
                if self.most > 1:
                    before.check()
                return found[0]

    def _attempt(self, compute: Callable[[], T]) -> tuple[list[T], Exception | None]:
        try:
            return [compute()], None
        except Exception as error:
            if not ran_out(error):
                raise
            let_go(error)
            return [], error

    def _go_on(self, own: Exception | None, *, final: bool) -> None:
        if final and own is None:
            raise WorkerFailed(fitting.elsewhere(self.most))
        if final and own is not None:
            own.add_note(fitting.hint(self.most))
            raise own
        free()
        self.most *= 2
        logger.info("%s", fitting.now(self.most))

    def _check(self, model: Any) -> None:
        if model not in self._drawing:
            self._drawing[model] = consistency.drawing_layers(model)
        norms = [layer.name for layer in batch_norm.layers_of(model) if layer.trainable]
        if norms:
            raise _refused(norms, "what is normalised by the statistics of a batch")
        if self._drawing[model]:
            raise _refused(self._drawing[model], "what draws for each row")


@final
class _Before:
    """What a step finds: its layers' states, metrics, and generators."""

    def __init__(self, model: Any) -> None:
        states = [v for layer in private.layers_of(model) for v in private.own_states(layer)]
        self._watched = [*states, *consistency.seeds_of(model)]
        self._variables = [*self._watched, *consistency.metric_states(model)]
        self._values = [v.value.detach().clone() for v in self._variables]
        self._torch = packed()
        self._python, self._numpy = generators.python_state(), generators.numpy_state()

    def put_back(self) -> None:
        """It is begun again."""
        for variable, value in zip(self._variables, self._values, strict=True):
            variable.assign(value)
        go_on_from(self._torch)
        generators.go_on_in_python(self._python)
        generators.go_on_in_numpy(self._numpy)

    def check(self) -> None:
        """Refuse what each micro-batch has changed by itself."""
        pairs = zip(self._watched, self._values, strict=False)
        changed = [v.path for v, value in pairs if not torch.equal(v.value, value)]
        if self._torch != packed():
            changed.append("torch's generator")
        if self._python != generators.python_state():
            changed.append("Python's generator")
        if changed:
            raise _refused(changed, "what a model's call writes, or draws")


def _refused(names: Sequence[str], what: str) -> Unsupported:
    return Unsupported(
        f"In micro-batches, {what} is another. Received: accumulate='auto' and {', '.join(names)}. "
        "Remove accumulate, or give a number of micro-batches, as in accumulate=4, if that is what "
        "you want."
    )
