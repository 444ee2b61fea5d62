"""`multi_worker_mirrored` and `horovod`: one replica in each of several processes.

Keras trains in each process as on one device, and only the sums go through TensorFlow's
collectives or the ring: Keras 3 does not train under MultiWorkerMirroredStrategy.
"""

from __future__ import annotations

from typing import final

from dream.adapters.tensorflow import runtime
from dream.adapters.tensorflow.base import Replicas, TensorFlowAdapter

from dream import _registry
from dream._adapter import Communicator, Plan
from dream._topology import Topology


@final
class MultiWorker(TensorFlowAdapter):
    """Several processes; alone, the devices of this one."""

    def _replicas(self, plan: Plan) -> Replicas:
        if not plan.cluster.alone:
            return ranks(plan)
        from dream.adapters.tensorflow.mirrored import replicas_here

        return replicas_here(plan)


def ranks(plan: Plan) -> Replicas:
    """This process's place among several."""
    device = runtime.local_device(plan.cluster, plan.devices)
    reduction = plan.reduction
    if reduction == "auto":
        reduction = plan.spec.reductions["tensorflow"][0]
    communicator: Communicator = _registry.reduction("tensorflow", reduction)(plan)
    topology = Topology.of(
        plan.cluster, num_replicas=plan.cluster.world_size, device=device
    )
    return Replicas(topology, communicator)
