"""The steps of `fit` under `parameter_server`: gradients of leased batches are pushed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any, final

import keras

from dream._errors import Unsupported
from dream.adapters.keras import checks, private
from dream.adapters.keras.asynchronous.feeds import feed_of, leased
from dream.adapters.keras.asynchronous.held import Held
from dream.adapters.keras.asynchronous.training import Training
from dream.adapters.keras.data.sources import Arrays, Batches


@final
class Pushing:
    """One a worker. example: a source's batch as a structure of specs; looping: what a backend
    needs around its loops."""

    def __init__(
        self,
        training: Training,
        example: Callable[[Arrays | Batches], Any],
        looping: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.rank = training.rank
        self._looping = looping
        self._training, self._example = training, example
        self._loader = 0

    def looping(self) -> AbstractContextManager[Any]:
        return self._looping()

    def begin(self, model: Any, source: Arrays | Batches) -> Callable[[Any, int], Any]:
        training = self._training
        private.build(model, private.symbolic(self._example(source)))
        if training.shared:
            checks.check_losses(model)
            model.compute_loss = MethodType(_unmasked_loss, model)
        held = training.ready(model, model.optimizer)
        held.check_untouched()
        self._loader = training.next_loader()
        one_length = not training.shared and _one_length(source)
        if model.train_function is None:  # kept, as Keras's own is, until the next compile
            model.train_function = training.machine.differentiate(
                self._local(model, held), held.order, eager=model.run_eagerly, one_length=one_length
            )
        differentiate = model.train_function

        def step(batch: Any, samples: int) -> Any:
            tensors = training.machine.tensors(batch)
            logs, present = differentiate((tensors,), training.client.gradient)
            training.push(held, float("nan"), float(samples), present)
            return logs

        return step

    def batches(self, source: Arrays | Batches, epoch: int) -> Iterator[tuple[Any, int]]:
        return leased(self._training.work, self._loader, epoch, feed_of(source))

    def refresh(self, model: Any) -> None:
        self._training.refresh()

    def end_epoch(self, model: Any) -> None:
        self.refresh(model)

    def told(self, model: Any) -> None:
        """Each worker stops for itself."""

    def finish(self, model: Any) -> None:
        self._training.fetch_state(model.optimizer)

    def _local(self, model: Any, held: Held) -> Callable[[Any], tuple[Any, list[Any]]]:
        def local(batch: Any) -> tuple[Any, list[Any]]:
            with self._training.catching.gradients(held.order) as gradients:
                logs = type(model).train_step(model, batch)
            return logs, gradients

        return local


def _unmasked_loss(model: Any, *args: Any, **kwargs: Any) -> Any:
    """The model's own loss, of predictions that count every sample alike."""
    predicted = args[2] if len(args) > 2 else kwargs.get("y_pred")
    if any(private.mask_of(t) is not None for t in private.tree.flatten(predicted)):
        raise Unsupported(
            "The predictions carry a mask, so the loss is the mean over what is unmasked, of which "
            "workers hold unequal numbers. Received: a masked output, staleness=0. Use "
            "strategy.train_step with weight=, or staleness=1 or more."
        )
    return type(model).compute_loss(model, *args, **kwargs)


def _one_length(source: Arrays | Batches) -> bool:
    if isinstance(source, Arrays):
        return source.samples % source.batch_size == 0
    if keras.backend.backend() != "tensorflow":
        return False
    specs = private.tree.flatten(source.adapter.get_tf_dataset().element_spec)
    return all(spec is None or spec.shape[0] is not None for spec in specs)
