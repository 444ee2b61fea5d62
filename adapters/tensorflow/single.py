"""`single`: one device; the oracle every other strategy is held against."""

from __future__ import annotations

from typing import final

from dream._adapter import Plan
from dream.adapters.tensorflow import replicas
from dream.adapters.tensorflow.base import TensorFlowAdapter


@final
class Single(TensorFlowAdapter):
    """One process, one device."""

    def _replicas(self, plan: Plan) -> replicas.Replicas:
        return replicas.one(plan)
