"""`sharded` and split="tensor": Keras models on a mesh of devices.

Every process runs the same program on the same batches; DTensor shares out the work.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

import tensorflow as tf

from dream._adapter import Loss, Plan, Step, Weight
from dream._errors import Unsupported
from dream._topology import Mesh, Topology
from dream.adapters.keras import recompute
from dream.adapters.keras.optimizer import check_scaled
from dream.adapters.tensorflow import collectives, evaluate, private, runtime
from dream.adapters.tensorflow.cluster import join_mesh
from dream.adapters.tensorflow.data import GlobalBatches
from dream.adapters.tensorflow.parallel.sharding import dtensor
from dream.adapters.tensorflow.parallel.sharding.layouts import (
    DATA,
    MODEL,
    Layouts,
    Shards,
)
from dream.adapters.tensorflow.parallel.sharding.mesh_placement import MeshPlacement
from dream.adapters.tensorflow.parallel.sharding.optimizer import laid
from dream.adapters.tensorflow.parallel.sharding.step import (
    MeshRunner,
    compiled,
    in_micros,
    report_draws,
)
from dream.adapters.tensorflow.parallel.sharding.tensor_plan import Planned
from dream.adapters.tensorflow.parallel.split import SplitParallelism, mesh_of
from dream.adapters.tensorflow.parallel.split_fit import SplitRunner
from dream.adapters.tensorflow.step import LocalStep, build_model


class MeshParallelism(SplitParallelism):
    """Models on a DTensor mesh; which variables are in parts is left open."""

    @abstractmethod
    def mesh_of(self, replicas: int) -> Mesh:
        """The axes of so many devices."""

    @abstractmethod
    def layouts(self, mesh: Mesh) -> Layouts: ...

    def connect(self, plan: Plan) -> SplitRunner:
        if plan.cluster.alone:
            devices = runtime.replicas(plan.devices)
            axes = self.mesh_of(len(devices))
            self._communicator = collectives.alone(plan.cluster)
            make = dtensor.local_mesh
        else:
            axes = self.mesh_of((plan.devices or 1) * plan.cluster.world_size)
            devices = runtime.logical_cpus(plan.devices or 1)
            join_mesh(plan.cluster)
            self._communicator = collectives.everyone(plan.cluster, "auto")
            make = dtensor.distributed_mesh
        private.log_no_information()
        mesh = make({DATA: axes.data, MODEL: axes.model}, devices)
        self._topology = Topology.of(plan.cluster, num_replicas=axes.size, device=devices[0])
        self.global_batches = GlobalBatches(self.communicator)
        self.placement = MeshPlacement(mesh, self.layouts(axes), self.communicator)
        return MeshRunner(self.placement, self.engine)

    def making(self) -> AbstractContextManager[Any]:
        return self.placement.making()

    def place(self, model: Any) -> None:
        self.placement.place_model(model)

    def train_step(self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None) -> Step:
        """weight: of micro-batches; else the loss sees the global batch as on one device."""
        update_options, placement = self.engine.update_options, self.placement
        check_scaled(update_options.precision, optimizer)
        local = LocalStep(model, loss, optimizer, weight, None, ranks=True)

        def micro(*given: Any) -> list[Any]:
            *part, _share, _rows = given
            return [laid(x, placement) for x in local.micro(*part)]

        if update_options.accumulates:
            on_mesh = in_micros(micro, local.finish, placement, update_options.micros)
        else:
            on_mesh = compiled(local, placement, "train")
        fresh = True

        def step(*batch: Any) -> Any:
            nonlocal fresh
            batch = self.global_batches.whole(batch)
            if fresh:
                with placement.making():
                    build_model(model, tf.nest.map_structure(tf.convert_to_tensor, batch))
                self.fitting.take(model)
                self.fitting.optimizer(optimizer)
                placement.place_model(model)
                report_draws(model)
                recompute.adopt(model, self.engine)
                placement.place_metrics(model)
                placement.place_optimizer(optimizer, model.trainable_variables)
                fresh = False
            return on_mesh(*batch)

        return step

    def sums(self, model: Any, metrics: evaluate.Metrics) -> Callable[..., Any]:
        placement = self.placement
        on_mesh = compiled(
            lambda *batch: evaluate.sums(model, batch, metrics), placement, "evaluate"
        )

        def sums(*batch: Any) -> Any:
            if not model.built:
                with placement.making():
                    model(*batch[:-1])
            placement.place_model(model)
            return on_mesh(*batch)

        return sums


@final
class ShardedParallelism(MeshParallelism):
    """Each device holds its part of the parameters and the optimizer's state; parameters are
    gathered where a layer uses them, and gradients are shared out again."""

    def mesh_of(self, replicas: int) -> Mesh:
        if self.plan.options["data"] not in (None, 1):
            raise Unsupported(
                "A DTensor's dim lies along one axis of the mesh, so a batch cannot be shared by "
                "groups of ranks and again within them. Received: "
                f"data={self.plan.options['data']}. Remove data, or use 'hybrid' with "
                "split='tensor'."
            )
        return Mesh.fit(replicas, data=None, model=1, spare="data")

    def layouts(self, mesh: Mesh) -> Layouts:
        zero = self.plan.options["zero"]
        assert isinstance(zero, int)
        return Shards(mesh.data, zero)


@final
class TensorParallelism(MeshParallelism):
    """`model_parallel` and `hybrid` with split="tensor": layers in parts along the model axis,
    batches along the data axis."""

    def mesh_of(self, replicas: int) -> Mesh:
        return mesh_of(self.plan, replicas)

    def layouts(self, mesh: Mesh) -> Layouts:
        chosen = self.plan.options["plan"]
        assert isinstance(chosen, (str, dict))
        return Planned(chosen, mesh.model)
