"""`single`: one device; the oracle every other strategy is held against."""

from __future__ import annotations

from typing import final

from dream.adapters.tensorflow import runtime, wire
from dream.adapters.tensorflow.base import Replicas, TensorFlowAdapter

from dream._adapter import Plan
from dream._alone import Alone
from dream._errors import ConfigurationError
from dream._topology import Topology


@final
class Single(TensorFlowAdapter):
    """One process, one device."""

    def _replicas(self, plan: Plan) -> Replicas:
        if plan.devices not in (None, 1):
            raise ConfigurationError(
                f"Strategy 'single' is one device. Received: devices={plan.devices}. Leave "
                "devices out, or use 'mirrored'."
            )
        (device,) = runtime.replicas(1)
        topology = Topology.of(plan.cluster, num_replicas=1, device=device)
        return Replicas(topology, Alone(wire.take))
