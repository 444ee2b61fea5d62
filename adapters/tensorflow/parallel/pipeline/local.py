"""Stages on the devices of one process, a thread for each device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream._adapter import Plan
from dream._errors import Unsupported
from dream._topology import Topology
from dream.adapters.keras.engine import Engine
from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.collectives import alone
from dream.adapters.tensorflow.keras.private import put_in_place
from dream.adapters.tensorflow.parallel.consistency import Consistency
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
from dream.adapters.tensorflow.parallel.pipeline.stages import StageDivision
from dream.adapters.tensorflow.parallel.split import mesh_of
from dream.pipeline.partition import LocalMail, Partition, Stage
from dream.pipeline.schedule import play


@dataclass(frozen=True, slots=True)
class LocalPlacement(PipelinePlacement):
    """Stages on the devices of one process.

    devices: of this process, row by row.
    """

    devices: Sequence[Sequence[str]]

    @property
    def shares_cores(self) -> bool:
        return all("CPU" in device for row in self.devices for device in row)


@final
class LocalPipeline(KerasPipeline):
    """Variables lie on the devices of the first row; further rows have copies, which take the
    first's values before each batch."""

    def __init__(
        self,
        placement: LocalPlacement,
        model: Any,
        partition: Partition,
        division: StageDivision,
        engine: Engine,
    ) -> None:
        devices = placement.devices
        if engine.update_options.recompute and len(devices) > 1:
            raise Unsupported(
                "Further rows of one process compute on copies of the variables, which backward "
                f"does not find again. Received: recompute={engine.update_options.recompute!r}, "
                f"data={len(devices)} in one process. Start a process for each device: dream "
                f"run -n {len(devices) * len(devices[0])}."
            )
        super().__init__(placement, model, partition, division, engine)
        self._devices = devices
        self._traced: set[tuple[int, bool, int]] = set()
        self._homes = {
            id(v): devices[0][s.device] for s in partition.stages for v in s.model.variables
        }
        for variable in model.variables:
            _move(variable, self._homes[id(variable)])
        self.placed = [
            [self._place(stage, row[stage.device], copied=index > 0) for stage in partition.stages]
            for index, row in enumerate(devices)
        ]
        self.trained = model.trainable_variables
        self._finite = tf.function(all_finite)

    @staticmethod
    def place(plan: Plan) -> LocalPlacement:
        devices = runtime.replicas(plan.devices)
        mesh = mesh_of(plan, len(devices))
        rows = [[devices[device] for device in mesh.copy_of(row * mesh.model)]
                for row in range(mesh.data)]  # fmt: skip
        topology = Topology.of(plan.cluster, num_replicas=len(devices), device=devices[0])
        here = alone(plan.cluster)
        return LocalPlacement(mesh, topology, here, here, Consistency(here), rows)

    def _place(self, stage: Stage, device: str, *, copied: bool) -> PlacedStage:
        with tf.device(device):
            variables = stage.model.variables if copied else ()
            copies = {id(v): tf.Variable(v.value, trainable=v.trainable) for v in variables}
        return self.placed_stage(stage, device, copies)

    def run(self, batch: MicrobatchInputs, loss: LossAndGradients | None) -> tuple[Any, list[Any]]:
        """By turns while there are functions to be traced, since Keras cannot trace in several
        threads."""
        count = len(batch.places)
        tasks, runs = {}, {}
        for row, names in enumerate(self._devices):
            tasks[row] = self.partition.tasks(
                row, self.rows, count, self.schedule, training=loss is not None
            )
            stages, mail = dict(enumerate(self.placed[row])), LocalMail()
            for here in enumerate(names):
                runs[row, here[0]] = MicrobatchRun(self.partition, stages, batch, loss, here, mail)
        lengths = {
            (m % self.rows, loss is None, len(next(iter(inputs.values()))))
            for m, inputs in enumerate(batch.inputs)
        }
        if lengths <= self._traced:
            orders = {(row, here): self.partition.on(here, tasks[row]) for row, here in runs}
            play(orders, self.partition.graph, lambda device, task: runs[device].run(task))
        else:
            for row, task in ((row, task) for row, each in tasks.items() for task in each):
                runs[row, self.partition.devices[task.stage]].run(task)
        self._traced |= lengths
        outputs = {m: given for run in runs.values() for m, given in run.outputs.items()}
        total = tf.add_n([run.total() for run in runs.values()])
        return total, [outputs[m] for m in range(count)]

    def reduce(self, losses: Sequence[Any]) -> tuple[Any, list[Any]]:
        """On the devices of the first row."""
        found: dict[int, Any] = {}
        for stage in (stage for row in self.placed for stage in row):
            for v, g in stage.summed():
                if g is not None:
                    with tf.device(self._homes[id(v)]):
                        found[id(v)] = found[id(v)] + g if id(v) in found else tf.identity(g)
        return tf.add_n(losses), [found.get(id(v)) for v in self.trained]

    @property
    def stages_here(self) -> Iterable[PlacedStage]:
        return chain.from_iterable(self.placed)

    def copy_seeds(self) -> None:
        """Nothing: further rows take all of the first's values before each batch."""

    def copy_variables(self) -> None:
        for row in self.placed[1:]:
            for stage in row:
                stage.take_variables()

    def build(self, optimizer: Any) -> None:
        if not optimizer.built:
            optimizer.build(self.trained)
        for state in optimizer.variables:
            owner = self.owner(state.name, state.shape)
            _move(state, "CPU:0" if owner is None else self._homes[id(owner)])

    def finite(self, gradients: Sequence[Any]) -> Any:
        return self._finite(gradients)


def _move(variable: Any, device: str) -> None:
    """Have a Keras variable lie on a device from now on."""
    own = variable.value
    if tf.DeviceSpec.from_string(own.device).device_index == int(device.rpartition(":")[2]):
        return
    with tf.device(device):
        made = tf.Variable(np.array(own), trainable=own.trainable, name=own.name[:-2])
    put_in_place(variable, made)
