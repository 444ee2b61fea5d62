"""Stages on the devices of one process, a thread for each device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
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
    LocalMail,
    LossAndGradients,
    MicrobatchInputs,
    MicrobatchRun,
    PlacedStage,
)
from dream.adapters.tensorflow.parallel.pipeline.schedule import StageTask, play, play_by_turns
from dream.adapters.tensorflow.parallel.pipeline.stages import Partition, Stage, StageDivision
from dream.adapters.tensorflow.parallel.split import mesh_of


def placement(plan: Plan) -> PipelinePlacement:
    """The devices of this process, row by row."""
    devices = runtime.replicas(plan.devices)
    mesh = mesh_of(plan, len(devices))
    rows = [
        [devices[device] for device in mesh.copy_of(row * mesh.model)] for row in range(mesh.data)
    ]
    topology = Topology.of(plan.cluster, num_replicas=len(devices), device=devices[0])
    communicator = alone(plan.cluster)
    make = partial(LocalPipeline, rows)
    return PipelinePlacement(
        mesh, topology, communicator, communicator, Consistency(communicator), make
    )


@final
class LocalPipeline(KerasPipeline):
    """Variables lie on the devices of the first row; further rows have copies, which take the
    first's values before each batch."""

    def __init__(
        self,
        devices: Sequence[Sequence[str]],
        model: Any,
        partition: Partition,
        division: StageDivision,
        engine: Engine,
    ) -> None:
        if engine.knobs.recompute and len(devices) > 1:
            raise Unsupported(
                "Further rows of one process compute on copies of the variables, which backward "
                f"does not find again. Received: recompute={engine.knobs.recompute!r}, data="
                f"{len(devices)} in one process. Start a process for each device: dream run -n "
                f"{len(devices) * len(devices[0])}."
            )
        super().__init__(model, partition, division, engine, len(devices))
        self._devices = devices
        self._traced: set[tuple[int, bool, int]] = set()
        self._homes = {
            id(v): devices[0][s.device] for s in partition.stages for v in s.model.variables
        }
        for variable in model.variables:
            _move(variable, self._homes[id(variable)])
        self.placed = [
            [_placed(stage, row[stage.device], copied=index > 0) for stage in partition.stages]
            for index, row in enumerate(devices)
        ]
        self.trained = model.trainable_variables
        self._finite = tf.function(all_finite)

    def run(self, batch: MicrobatchInputs, loss: LossAndGradients | None) -> tuple[Any, list[Any]]:
        """By turns while there are functions to be traced, since Keras cannot trace in several
        threads."""
        count = len(batch.fractions)
        orders, runs = {}, {}
        for row, names in enumerate(self._devices):
            stages, mail = dict(enumerate(self.placed[row])), LocalMail()
            found = self.routes.orders(
                row, self.rows, count, self.schedule, training=loss is not None
            )
            for here, tasks in found.items():
                orders[row, here] = tasks
                runs[row, here] = MicrobatchRun(
                    self.routes, stages, batch, loss, (here, names[here]), mail
                )

        def act(device: tuple[int, int], task: StageTask) -> None:
            runs[device].run(task)

        lengths = {
            (m % self.rows, loss is None, len(next(iter(inputs.values()))))
            for m, inputs in enumerate(batch.inputs)
        }
        (play if lengths <= self._traced else play_by_turns)(orders, self.routes.graph, act)
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


def _placed(stage: Stage, device: str, *, copied: bool) -> PlacedStage:
    with tf.device(device):
        variables = stage.model.variables if copied else ()
        copies = {id(v): tf.Variable(v.value, trainable=v.trainable) for v in variables}
    return PlacedStage(stage, device, copies)


def _move(variable: Any, device: str) -> None:
    """Have a Keras variable lie on a device from now on."""
    own = variable.value
    if tf.DeviceSpec.from_string(own.device).device_index == int(device.rpartition(":")[2]):
        return
    with tf.device(device):
        made = tf.Variable(np.array(own), trainable=own.trainable, name=own.name[:-2])
    put_in_place(variable, made)
