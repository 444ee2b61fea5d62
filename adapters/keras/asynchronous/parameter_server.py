"""`parameter_server` in Keras: gradients of leased batches are pushed, and servers step on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any, final

import keras
import numpy as np

from dream._errors import Unsupported
from dream._plain import pack, unpack
from dream.adapters.keras import checks, consistency, private
from dream.adapters.keras.asynchronous import optimizer as optimizers
from dream.adapters.keras.asynchronous.block import CaughtGradients, ServedMachine
from dream.adapters.keras.asynchronous.fit import feed_of, leased
from dream.adapters.keras.data.resume import FitProgress
from dream.adapters.keras.data.sources import Arrays, Batches
from dream.parameter_server.optimizer import ServerSharding
from dream.parameter_server.worker import Worker, WorkerState, check_untrained, dtype_of


@final
class KerasWorkerState(WorkerState):
    """A model and its optimizer. order: the variables, as they lie flat."""

    def __init__(self, model: Any, optimizer: Any, servers: int, machine: ServedMachine) -> None:
        optimizers.check(optimizer, servers)
        variables = list(model.trainable_variables)
        dtype_of((str(v.dtype) for v in variables), "a dtype policy")
        sharding = ServerSharding([v.shape for v in variables], servers)
        self.model, self._machine = model, machine
        self.order = [variables[index] for index in sharding.order]
        specs = [optimizers.describe(optimizer, own) for own in sharding.split(self.order)]
        values = machine.flat(self.order)
        super().__init__(optimizer, sharding, specs, values, np.zeros_like(values))
        counter = private.counter(optimizer)
        self._start, self._load = int(counter), machine.load(self.order, counter)

    def load(self, updates: int) -> None:
        """Take the count of updates, too."""
        self._load(self.values, self._start + updates)

    def check_untouched(self) -> None:
        """Refuse parameters that are not those that came last: the servers would not know them."""
        if not np.array_equal(self._machine.flat(self.order), self.values):
            raise Unsupported(
                "The servers hold the parameters once training has begun. Received: weights that "
                "were set or loaded after it. Set them before the first fit or step."
            )

    def settings(self) -> bytes:
        """Pack the learning rate; None where a schedule gives it: the servers' own, by their own
        count."""
        fixed = isinstance(self.optimizer.get_config()["learning_rate"], float)
        return pack(float(self.optimizer.learning_rate) if fixed else None)

    def take_optimizer_state(self, saved: Sequence[bytes]) -> None:
        for state in saved:
            optimizers.take_state(self.optimizer, unpack(state))

    def pack_untrained(self) -> bytes:
        """Pack what no optimizer holds: running statistics, frozen weights."""
        return pack([np.array(keras.ops.convert_to_numpy(v)) for v in self._untrained()])

    def take_untrained(self, saved: bytes) -> None:
        """Take rank 0's, to start with."""
        own, told = self._untrained(), unpack(saved)
        check_untrained([tuple(v.shape) for v in own], [v.shape for v in told])
        for variable, first in zip(own, told, strict=True):
            variable.assign(first)

    def _untrained(self) -> list[Any]:
        trained = {id(v) for v in self.order}
        return [v for v in self.model.weights if id(v) not in trained]


@final
class KerasWorker:
    """A rank that works for the servers. A model and its optimizer are held from the first batch
    on."""

    def __init__(self, worker: Worker, machine: ServedMachine) -> None:
        self.worker, self.machine = worker, machine
        self.rank = worker.job.place.rank
        self.caught = CaughtGradients(
            machine,
            "The servers run the optimizer, and do not know what this gradient is of",
            "Take the step by strategy.train_step(model, loss, optimizer), or use model.fit",
        )
        self._state: KerasWorkerState | None = None
        self._loaders = 0

    def next_loader(self) -> int:
        """Count the sources of batches: a number for each, the same on every worker."""
        self._loaders += 1
        return self._loaders - 1

    def take(self, optimizer: Any) -> Any:
        """Have the optimizer's `apply` be the servers' from now on."""
        if "save_own_variables" in vars(optimizer):
            return optimizer
        worker = self.worker

        def save_own_variables(self: Any, store: Any) -> None:
            worker.fetch_optimizer_state(self)
            type(self).save_own_variables(self, store)

        optimizer.save_own_variables = MethodType(save_own_variables, optimizer)
        return self.caught.take(optimizer)

    def ready(self, model: Any, optimizer: Any) -> KerasWorkerState:
        """See to it, before a batch is trained on, that the servers know the parameters, and this
        rank has theirs."""
        state = self._state
        if state is None:
            self.take(optimizer)
            servers = self.worker.job.roles.servers
            state = KerasWorkerState(model, optimizer, servers, self.machine)
            state.take_untrained(self.worker.hold(state, state.pack_untrained()))
            self._state = state
            consistency.part_seeds(model, self.rank)
            if self.worker.shares_batches:
                consistency.report_local_statistics(model)
        if state.model is not model or state.optimizer is not optimizer:
            raise Unsupported(
                "The servers run one optimizer over one model. Received: another one, "
                f"{type(optimizer).__name__} over {model.name!r}. Train one model in a job."
            )
        return state


@final
class PushedSteps:
    """The steps of `fit`. example: a source's batch as a structure of specs; looping: what a
    backend needs around its loops."""

    def __init__(
        self,
        worker: KerasWorker,
        example: Callable[[Arrays | Batches], Any],
        looping: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.rank, self.looping = worker.rank, looping
        self._worker, self._example = worker, example
        self._loader = 0

    def begin(self, model: Any, source: Arrays | Batches) -> Callable[[Any, int], Any]:
        own, worker = self._worker, self._worker.worker
        private.build(model, private.symbolic(self._example(source)))
        if worker.shares_batches:
            checks.check_means(model)
            model.compute_loss = MethodType(_unmasked_loss, model)
        state = own.ready(model, model.optimizer)
        state.check_untouched()
        self._loader = own.next_loader()
        one_length = not worker.shares_batches and _one_length(source)
        differentiate = own.caught.of_fit(model, own.machine, state.order, one_length=one_length)

        def step(batch: Any, samples: int) -> Any:
            logs, present = differentiate((own.machine.tensors(batch),), state.gradient)
            worker.push(float("nan"), float(samples), present)
            return logs

        return step

    def batches(self, source: Arrays | Batches, epoch: int) -> Iterator[tuple[Any, int]]:
        return leased(self._worker.worker, (self._loader, epoch), feed_of(source))

    def refresh(self) -> None:
        self._worker.worker.refresh()

    def end_epoch(self, model: Any) -> None:
        self.refresh()

    def told(self, model: Any) -> None:
        """Each worker stops for itself."""

    def saver(self, asked: Any, progress: FitProgress, users: list[Any]) -> None:
        """None can: the servers hold what a checkpoint would."""

    def finish(self, model: Any) -> None:
        self._worker.worker.fetch_optimizer_state(model.optimizer)


def _unmasked_loss(model: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute the model's own loss, of predictions that count every sample alike."""
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
