"""Replicas in step: `single`, `mirrored`, `multi_worker_mirrored`, `horovod` and `data_parallel`.

One device; the devices of this process, driven by MirroredStrategy; or the devices of each of
several processes. There Keras trains as in one process, and only the sums go between the ranks:
Keras 3 does not train under MultiWorkerMirroredStrategy's scope.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import tensorflow as tf

from dream._adapter import Adapter, Loss, Metric, Plan, Step, Weight
from dream._errors import ConfigurationError, Unsupported
from dream._topology import Topology
from dream.adapters.keras import recompute
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.hooks import unscaled_losses
from dream.adapters.keras.optimizer import adopt_clipping, check_scaled, check_unscaled
from dream.adapters.keras.update.drift import guard_of
from dream.adapters.keras.update.exchange import PartsExchange
from dream.adapters.tensorflow import collectives, evaluate, loss, randomness, runtime, step
from dream.adapters.tensorflow.adapter import Parallelism
from dream.adapters.tensorflow.data import (
    Shard,
    ShardedDataset,
    Totals,
    shard_of_rank,
    shards_of_replicas,
)
from dream.adapters.tensorflow.hooks import loops_over_devices
from dream.adapters.tensorflow.keras.engine import open_block
from dream.adapters.tensorflow.parallel import compression, mixed
from dream.adapters.tensorflow.tensors import TensorFlowTensors
from dream.collectives import Communicator, Members
from dream.data.pace import check_measured
from dream.strategies import registry
from dream.update.update import UpdateOptions


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """Set up before TensorFlow's first op.

    distribution: what drives this process's several devices; None where it has one.
    exchange: how the ranks' gradients become one; None for their mean.
    """

    topology: Topology
    communicator: Communicator
    distribution: tf.distribute.Strategy | None = None
    exchange: PartsExchange | None = None


def one(plan: Plan) -> ReplicaGroup:
    """One device."""
    if plan.devices not in (None, 1):
        raise ConfigurationError(
            f"Strategy {plan.spec.name!r} is one device. Received: devices={plan.devices}. Remove "
            "devices, or use 'mirrored'."
        )
    (device,) = runtime.replicas(1)
    topology = Topology.of(plan.cluster, num_replicas=1, device=device)
    return ReplicaGroup(topology, collectives.alone(plan.cluster))


def synchronous(plan: Plan) -> ReplicaGroup:
    """The devices of this process where it is alone, else equally many in every process."""
    return _devices(plan) if plan.cluster.alone else _ranks(plan)


def _devices(plan: Plan) -> ReplicaGroup:
    """A single device needs no strategy of TensorFlow's."""
    devices = runtime.replicas(plan.devices)
    compression.check(UpdateOptions.of(plan.options), len(devices))
    distribution = _distribution(plan, devices)
    topology = Topology.of(plan.cluster, num_replicas=len(devices), device=devices[0])
    return ReplicaGroup(topology, collectives.alone(plan.cluster), distribution)


def _ranks(plan: Plan) -> ReplicaGroup:
    devices = runtime.own_devices(plan.cluster, plan.devices or 1)
    compression.check(UpdateOptions.of(plan.options), len(devices))
    if plan.mixed and len(devices) > 1:
        raise mixed.one_device(len(devices))
    wire = registry.reduction("tensorflow", plan.transport)(plan.cluster, plan.transport)
    communicator = Communicator(wire, TensorFlowTensors(), Members.all_of(plan.cluster))
    replicas = plan.cluster.world_size * len(devices)
    topology = Topology.of(plan.cluster, num_replicas=replicas, device=devices[0])
    exchange = compression.exchange_of(
        UpdateOptions.of(plan.options), wire, plan.cluster.world_size
    )
    return ReplicaGroup(topology, communicator, _distribution(plan, devices), exchange)


def _distribution(plan: Plan, devices: tuple[str, ...]) -> tf.distribute.Strategy | None:
    adding = str(plan.options.get("cross_device_ops", "auto"))
    if len(devices) > 1:
        return runtime.mirrored(devices, adding, alone=plan.cluster.alone)
    if adding != "auto":
        raise ConfigurationError(
            "One device has no gradients to add up. Received: "
            f"cross_device_ops={adding!r}, devices={plan.devices}. Remove it, or give devices=2."
        )
    return None


def single(plan: Plan) -> Adapter:
    return ReplicaParallelism(one, plan)


def mirrored(plan: Plan) -> Adapter:
    return ReplicaParallelism(synchronous, plan)


@final
class ReplicaParallelism(Parallelism):
    """Whole models, trained on shares of each batch; who trains is left open."""

    chooses = True

    def __init__(self, replicas: Callable[[Plan], ReplicaGroup], plan: Plan) -> None:
        super().__init__(plan)
        self._update_options = UpdateOptions.of(plan.options)
        if plan.mixed and mixed.breaks(self._update_options):
            raise mixed.no_update_options(self._update_options)
        self._tell_tuning = plan.begin_tuning()
        found = replicas(plan)
        self._topology, self._communicator = found.topology, found.communicator
        self._distribution = found.distribution
        if found.distribution is not None and plan.options.get("shares", "equal") != "equal":
            raise Unsupported(
                "Devices of one process have equal shares. Received: "
                f"shares={plan.options['shares']!r} and {found.topology.num_replicas} devices. "
                "Remove shares, or start a rank a device (dream run -n)."
            )
        if plan.options.get("shares") == "auto":
            check_measured(found.topology.device)
        self._open, self._totals = ExitStack(), Totals()
        self._block = open_block(plan, found.communicator, found.distribution, found.exchange)

    def reads_parts(self, plan: Plan) -> bool:
        return not plan.mixed and (plan.cluster.alone or plan.devices in (None, 1))

    def enter(self) -> None:
        if self.plan.spec.update == "synchronous" and not self.plan.mixed:
            randomness.start(self.communicator)
        self._block.enter()
        if self._distribution is not None:
            self._open.enter_context(loops_over_devices())
            self._open.enter_context(unscaled_losses())  # in a loop of the user's own too

    def exit(self) -> None:
        self._open.close()
        self._block.exit()
        self._tell_tuning()

    def prepare_made(self, item: Any) -> Any:
        return self._block.prepare(item)

    def prepare_data(self, data: Any) -> Any:
        if self._block.engine.parted:
            raise Unsupported(
                "Ranks read parts of their own in fit alone. Received: input='sharded' and a "
                "dataset to prepare for a loop. Use model.fit, or remove input=."
            )
        return ShardedDataset(
            data, self._shard(), self.communicator, self.plan.resyncs, self._totals
        )

    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
        distribution, update_options = self._distribution, self._update_options
        local = step.LocalStep(
            model, loss, optimizer, weight, self._total(),
            ranks=distribution is None, most=update_options.micros, engine=self._block.engine,
        )  # fmt: skip
        adopt_clipping(optimizer, update_options)
        check_unscaled(optimizer, update_options)
        check_scaled(update_options.precision, optimizer)

        def start(batch: tuple[Any, ...]) -> None:
            with distribution.scope() if distribution is not None else nullcontext():
                step.build(model, optimizer, batch)
            step.agree(model, optimizer, self.communicator)
            recompute.adopt(model, self._block.engine)
            self._block.start(model)

        if self.plan.resyncs is not None:
            return mixed.step(model, optimizer, local, self._block)
        if distribution is None:
            guard = guard_of(self._block.engine)
            between = partial(guard.before_step, model, [optimizer]) if guard else None
            return step.process_step(local, start, between, self._totals)
        return step.replica_step(local, distribution, start, self._totals)

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        return evaluate.evaluate(
            model, data, metrics, self.communicator, self._shard(), self._run,
            resyncs=self.plan.resyncs,
        )  # fmt: skip

    @property
    def keras_engine(self) -> Engine:
        return self._block.engine

    def weigh(self, loss_value: Any, count: Any) -> Any:
        if self.plan.resyncs is not None:
            raise mixed.no_loop()
        if self._update_options.sync_batch_norm and self.topology.num_replicas > 1:
            raise Unsupported(
                "In a custom training loop BatchNorm sees only this rank's share. Received: weigh, "
                "sync_batch_norm=True. Take the step by strategy.train_step(model, loss, "
                "optimizer, weight=...), or remove sync_batch_norm."
            )
        return loss.weigh(
            loss_value, count, self.topology.num_replicas, self._total(),
            ranks=self._distribution is None,
        )  # fmt: skip

    def _shard(self) -> Shard:
        if self._distribution is not None:
            engine = self._block.engine
            return shards_of_replicas(self._distribution, engine.here, engine.parts)
        if self._block.engine.pace is not None:
            raise Unsupported(
                "In a training loop of one's own on TensorFlow, shares follow no speeds. Received: "
                "shares='auto'. Give them by hand, as in shares=[3, 1], or train by model.fit."
            )
        return shard_of_rank(self.topology.rank, self._block.engine.division)

    def _total(self) -> loss.Total | None:
        """Who adds up inside a step: the replicas here and the ranks, the ranks, or nobody."""
        if self._distribution is not None:
            return self._block.engine.total
        if self.topology.world_size == 1:
            return None
        adding = self.communicator.unchecked()  # the layout is agreed on, once
        return lambda tensors: adding.all_reduce(tensors, "sum")

    def _run(self, function: Callable[..., Any], batch: tuple[Any, ...]) -> list[tf.Tensor]:
        """`function` on every share that is here."""
        if self._distribution is None:
            return evaluate.here(function, batch)
        results = self._distribution.run(function, args=batch)
        return list(self._distribution.experimental_local_results(results))
