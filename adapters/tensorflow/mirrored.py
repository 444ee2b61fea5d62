"""`mirrored`: replicas in step on one host, in one process or one in each of several."""

from __future__ import annotations

from typing import final

from dream.adapters.tensorflow import runtime, wire
from dream.adapters.tensorflow.base import Replicas, TensorFlowAdapter
from dream.adapters.tensorflow.multi_worker import ranks

from dream._adapter import Plan
from dream._alone import Alone
from dream._topology import Topology


@final
class Mirrored(TensorFlowAdapter):
    """Several devices of one process under MirroredStrategy, or several processes."""

    def _replicas(self, plan: Plan) -> Replicas:
        return replicas_here(plan) if plan.cluster.alone else ranks(plan)


def replicas_here(plan: Plan) -> Replicas:
    """The devices of this one process. A single one needs no strategy of TensorFlow's."""
    devices = runtime.replicas(plan.devices)
    distribution = runtime.mirrored(devices) if len(devices) > 1 else None
    topology = Topology.of(plan.cluster, num_replicas=len(devices), device=devices[0])
    return Replicas(topology, Alone(wire.take), distribution)
