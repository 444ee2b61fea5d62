"""`multi_worker_mirrored` and `horovod`: one replica in each of several processes.

Keras trains in each process as on one device, and only the sums go through TensorFlow's
collectives or the ring: Keras 3 does not train under MultiWorkerMirroredStrategy's scope.
"""

from __future__ import annotations

from typing import final

from dream._adapter import Plan
from dream.adapters.tensorflow import replicas
from dream.adapters.tensorflow.base import TensorFlowAdapter


@final
class MultiWorker(TensorFlowAdapter):
    """Several processes; alone, the devices of this one."""

    def _replicas(self, plan: Plan) -> replicas.Replicas:
        return replicas.synchronous(plan)
