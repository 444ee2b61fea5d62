"""Stages on several ranks, trained a batch at a time.

Every rank reads the whole batch. Within a row of the mesh tensors go from rank to rank, and so do
the gradients by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from dream._adapter import Plan
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.keras.consistency import by_name
from dream.adapters.keras.engine import Engine
from dream.adapters.tensorflow import collectives, runtime
from dream.adapters.tensorflow.parallel.consistency import Consistency
from dream.adapters.tensorflow.parallel.pipeline import remote_variables
from dream.adapters.tensorflow.parallel.pipeline.engine import (
    KerasPipeline,
    PipelinePlacement,
    all_finite,
)
from dream.adapters.tensorflow.parallel.pipeline.microbatch_run import (
    LossAndGradients,
    MicrobatchInputs,
    MicrobatchRun,
    PlacedStage,
)
from dream.adapters.tensorflow.parallel.pipeline.remote_variables import Home
from dream.adapters.tensorflow.parallel.pipeline.stages import StageDivision
from dream.adapters.tensorflow.parallel.split import mesh_of
from dream.collectives import Communicator
from dream.model_description.layout import check_same
from dream.pipeline.partition import Partition, RankMail


@dataclass(frozen=True, slots=True)
class RankPlacement(PipelinePlacement):
    """Stages on ranks, one each.

    peers: all ranks, for what goes from one to another, unchecked; row_ranks: those of this
    rank's row, as `takers` are those of its column.
    """

    peers: Communicator
    row_ranks: Communicator

    @property
    def row(self) -> int:
        return self.mesh.data_index(self.communicator.rank)

    @property
    def here(self) -> int:
        """The device of a row that this rank is."""
        return self.mesh.model_index(self.communicator.rank)

    def of_row(self, row: int) -> tuple[int, ...]:
        return self.mesh.copy_of(row * self.mesh.model)


@final
class RankPipeline(KerasPipeline):
    """One stage or more on each rank."""

    def __init__(
        self,
        placement: RankPlacement,
        model: Any,
        partition: Partition,
        division: StageDivision,
        engine: Engine,
    ) -> None:
        super().__init__(placement, model, partition, division, engine)
        self._ranks, everyone = placement, placement.communicator
        self._device_of = {id(v): s.device for s in partition.stages for v in s.model.variables}
        check_same(everyone.all_gather_object(by_name(model.variables)))
        for variable in model.variables:
            mine = keras.ops.convert_to_numpy(variable.value)
            variable.assign(everyone.broadcast(mine))
            remote_variables.send_home(variable, self._home(variable))
        self._placed = {
            index: self.placed_stage(stage, placement.topology.device, {})
            for index, stage in enumerate(partition.stages)
            if stage.device == placement.here
        }
        self.trained = [v for v in model.trainable_variables if self._home(v).here]

    @staticmethod
    def place(plan: Plan) -> RankPlacement:
        """One device of each rank, row by row."""
        device = runtime.local_device(plan.cluster, plan.devices)
        mesh = mesh_of(plan, plan.cluster.world_size)
        topology = Topology.of(plan.cluster, num_replicas=mesh.data, device=device)
        everyone = collectives.everyone(plan.cluster, "auto")
        rows = [everyone.group(mesh.copy_of(row * mesh.model)) for row in range(mesh.data)]
        columns = [everyone.group(mesh.twins_of(place)) for place in range(mesh.model)]
        row, twins = next(filter(None, rows)), next(filter(None, columns))
        peers = everyone.group(range(everyone.world_size))
        assert peers is not None
        return RankPlacement(
            mesh, topology, everyone, twins, Consistency(everyone), peers.unchecked(), row
        )

    def _home(self, variable: Any) -> Home:
        device, ranks = self._device_of[id(variable)], self._ranks
        return Home(device, device == ranks.here, ranks.consistency, ranks.communicator)

    @property
    def _last(self) -> int:
        """The device that a row's loss is on; in the first row, the rank that counts metrics."""
        return self.partition.devices[-1]

    def run(self, batch: MicrobatchInputs, loss: LossAndGradients | None) -> tuple[Any, list[Any]]:
        ranks, count = self._ranks, len(batch.places)
        partition, here = self.partition, ranks.here
        tasks = partition.tasks(
            ranks.row, self.rows, count, self.schedule, training=loss is not None
        )
        members = ranks.of_row(ranks.row)
        coming = {
            device: partition.letters(partition.on(device, tasks), here)
            for device in range(len(members))
            if device != here
        }
        mail, device = RankMail(ranks.peers, members, coming), (here, ranks.topology.device)
        run = MicrobatchRun(partition, self._placed, batch, loss, device, mail)
        for task in partition.on(here, tasks):
            run.run(task)
        return run.total(), [run.outputs.get(m) for m in range(count)]

    def reduce(self, losses: Sequence[Any]) -> tuple[Any, list[Any]]:
        ranks = self._ranks
        loss = self.summed(tf.add_n(losses))
        found = {id(v): g for stage in self._placed.values() for v, g in stage.summed()}
        mine = [found[id(v)] for v in self.trained]
        if self.rows == 1 or not mine:
            return loss, mine
        there = np.array([g is not None for g in mine], np.float32)
        whole = [tf.zeros(v.shape, v.dtype) if g is None else g
                 for v, g in zip(self.trained, mine, strict=True)]  # fmt: skip
        anywhere, *sums = ranks.takers.all_reduce([tf.constant(there), *whole], "sum")
        return loss, [g if here else None for here, g in zip(anywhere.numpy(), sums, strict=True)]

    def clipped(self, gradients: list[Any], optimizer: Any, scale: float) -> list[Any]:
        most = self._largest_norm(optimizer)
        if most is None:
            return gradients
        present = [tf.cast(g, tf.float32) for g in gradients if g is not None]
        squares = tf.add_n([tf.zeros(()), *(tf.reduce_sum(tf.square(g)) for g in present)])
        norm, most = tf.sqrt(self._ranks.row_ranks.all_reduce(squares, "sum")), most * scale
        factor = most / tf.maximum(norm, most) if most else tf.zeros_like(norm)
        return [None if g is None else g * tf.cast(factor, g.dtype) for g in gradients]

    def _largest_norm(self, optimizer: Any) -> float | None:
        """Of the whole gradient, as dream or Keras was told; None for any. Keras itself would take
        the norm of what is here for it."""
        inner = getattr(optimizer, "inner_optimizer", optimizer)
        most = (
            inner.global_clipnorm
            if self._update_options.clip_norm is None
            else self._update_options.clip_norm
        )
        steps = inner.gradient_accumulation_steps
        if most is not None and steps:
            raise Unsupported(
                "Keras clips what it has accumulated, by the norm of what this rank has. Received: "
                f"a largest norm of {most} with gradient_accumulation_steps={steps}. Use "
                "accumulate= of the strategy in its place, or one process with devices=."
            )
        return None if most is None else float(most)

    def finite(self, gradients: Sequence[Any]) -> Any:
        mine = tf.cast(all_finite(gradients), tf.float32)
        return self._ranks.communicator.all_reduce(mine, "min") > 0

    @property
    def stages_here(self) -> Iterable[PlacedStage]:
        return self._placed.values()

    def copy_seeds(self) -> None:
        for stage in self._placed.values():
            seeds = stage.seeds()
            stage.go_on_from(self._ranks.takers.broadcast(seeds, 0) if seeds else [])

    def copy_variables(self) -> None:
        """Nothing: each row has added up the same gradients."""

    def gather(self, outputs: list[Any], *, everywhere: bool) -> list[Any] | None:
        """The last rank of each row has its own."""
        ranks, peers = self._ranks, self._ranks.peers
        takers = range(peers.world_size) if everywhere else (self._last,)
        found = []
        for m, own in enumerate(outputs):
            source = ranks.of_row(m % self.rows)[self._last]
            if source == peers.rank:
                for tensor in own:
                    for taker in takers:
                        if taker != peers.rank:
                            peers.isend(tensor, taker)
            elif peers.rank in takers:
                own = [peers.receive(source) for _ in self.partition.outputs]
            found.append(own)
        return found if peers.rank in takers else None

    def summed(self, value: Any) -> Any:
        return self._ranks.communicator.all_reduce(value, "sum")

    def copy_metrics(self, states: Sequence[Any]) -> None:
        everyone = self._ranks.communicator
        values = everyone.broadcast([tf.convert_to_tensor(v.value) for v in states], self._last)
        if everyone.rank != self._last:
            for variable, value in zip(states, values, strict=True):
                variable.assign(value)

    def build(self, optimizer: Any) -> None:
        if not optimizer.built:
            with tf.variable_creator_scope(self._state):
                optimizer.build(self.model.trainable_variables)
        for state in optimizer.variables:
            owner = self.owner(state.name, state.shape)
            if owner is not None:
                remote_variables.send_home(state, self._home(owner))

    def _state(self, make: Any, **given: Any) -> Any:
        """A state made where it belongs, so that no rank has all."""
        start = given["initial_value"]
        array = np.asarray(start() if callable(start) else start)
        owner = self.owner(given["name"], array.shape)
        if owner is None:
            return make(**given)
        trains = bool(given["trainable"])
        home = self._home(owner)
        return remote_variables.made(array, home, trains=trains, called=given["name"])
