"""What every TensorFlow strategy is: replicas, who adds up, and Keras's block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from dream._adapter import Adapter, Metric, Plan, Step
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.keras import recompute
from dream.adapters.keras.optimizer import adopt_clipping, check_scaled, check_unscaled
from dream.adapters.tensorflow import calling, evaluation, mixed, starting, training, weighing
from dream.adapters.tensorflow.dealing import Cut, Dealt, replica_cut, share_cut
from dream.adapters.tensorflow.keras.engine import open_block
from dream.adapters.tensorflow.replicas import Replicas
from dream.adapters.tensorflow.tapes import loops_refused
from dream.collectives import Communicator
from dream.update import tuning
from dream.update.update import Knobs


class TensorFlowAdapter(Adapter):
    """A strategy in TensorFlow; what differs between them is `_replicas`."""

    def __init__(self, plan: Plan) -> None:
        self._resyncs = plan.resyncs
        self._knobs = Knobs.of(plan.options)
        if plan.mixed and mixed.breaks(self._knobs):
            raise mixed.no_knobs(self._knobs)
        self._tell_tuning = tuning.begin(plan)
        self._who = self._replicas(plan)
        self._open = ExitStack()
        self._block = open_block(plan, self._who)

    @abstractmethod
    def _replicas(self, plan: Plan) -> Replicas:
        """Set up what must be there before TensorFlow's first op."""

    @property
    def topology(self) -> Topology:
        return self._who.topology

    @property
    def communicator(self) -> Communicator:
        return self._who.communicator

    def enter(self) -> None:
        self._block.enter()
        if self._who.distribution is not None:
            self._open.enter_context(loops_refused(self.topology.num_replicas))

    def exit(self) -> None:
        self._open.close()
        self._block.exit()
        self._tell_tuning()

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return tuple(self._prepare(item) for item in objects)

    def _prepare(self, item: Any) -> Any:
        if isinstance(item, (keras.Model, keras.optimizers.Optimizer)):
            return self._block.prepare(item)
        return Dealt(item, self._cut(), self.communicator, self._resyncs)

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        weight: Callable[..., Any] | None,
    ) -> Step:
        distribution = self._who.distribution
        total = self._total()
        local = training.LocalStep(
            model, loss, optimizer, weight, total,
            ranks=distribution is None, most=self._knobs.accumulate, engine=self._block.engine,
        )  # fmt: skip
        adopt_clipping(optimizer, self._knobs)
        check_unscaled(optimizer, self._knobs)
        check_scaled(self._knobs.precision, optimizer)

        def start(batch: calling.Batch) -> None:
            with distribution.scope() if distribution is not None else nullcontext():
                starting.build(model, optimizer, batch)
            starting.agree(model, optimizer, self.communicator)
            recompute.adopt(model, self._block.engine)
            self._block.start(model)

        if self._resyncs is not None:
            return mixed.step(model, optimizer, local, self._block)
        if distribution is None:
            return training.process_step(local, start)
        return training.replica_step(local, distribution, start)

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluation.evaluate(
            model, data, metrics, self.communicator, self._cut(), self._run, resyncs=self._resyncs
        )

    def weigh(self, loss: Any, count: Any) -> Any:
        if self._resyncs is not None:
            raise mixed.no_loop()
        if self._knobs.sync_batch_norm and self.topology.num_replicas > 1:
            raise Unsupported(
                "In a loop of one's own BatchNorm sees this rank's share. Received: weigh, "
                "sync_batch_norm=True. Take the step by strategy.train_step(model, loss, "
                "optimizer, weight=...), or leave sync_batch_norm out."
            )
        return weighing.weigh(
            loss, count, self.topology.num_replicas, self._total(),
            ranks=self._who.distribution is None,
        )  # fmt: skip

    def full_state(self, model: Any) -> dict[str, NDArray[Any]]:
        return {v.path: np.asarray(v) for v in model.variables}

    def _cut(self) -> Cut:
        if self._who.distribution is not None:
            return replica_cut(self._who.distribution)
        return share_cut(self.topology.rank, self.topology.world_size)

    def _total(self) -> training.Total | None:
        """Who adds up inside a step: the replicas of this process, the ranks, or nobody."""
        if self._who.distribution is not None:
            return self._block.engine.total
        if self.topology.world_size == 1:
            return None
        adding = self.communicator.unchecked()  # the layout is agreed on, once
        return lambda tensors: adding.all_reduce(tensors, "sum")

    def _run(self, function: Callable[..., Any], batch: calling.Batch) -> list[tf.Tensor]:
        """`function` on every share that is here."""
        distribution = self._who.distribution
        if distribution is None:
            return [function(*batch)]
        results = distribution.run(function, args=batch)
        return list(distribution.experimental_local_results(results))
