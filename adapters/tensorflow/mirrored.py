"""`mirrored` and `data_parallel`: replicas in step on one host, in one process or one in each of
several; `data_parallel` is never but in one."""

from __future__ import annotations

from typing import final

from dream._adapter import Plan
from dream.adapters.tensorflow import replicas
from dream.adapters.tensorflow.base import TensorFlowAdapter


@final
class Mirrored(TensorFlowAdapter):
    """MirroredStrategy over the devices of one process; several processes by their sums."""

    def _replicas(self, plan: Plan) -> replicas.Replicas:
        return replicas.synchronous(plan)
