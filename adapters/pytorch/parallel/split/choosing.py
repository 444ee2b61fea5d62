"""Which adapter serves a name whose options ask for different machinery."""

from __future__ import annotations

from collections.abc import Mapping

from dream import _registry
from dream._adapter import Adapter, Plan
from dream.adapters.pytorch.adapter import TorchAdapter
from dream.adapters.pytorch.parallel.ddp.parallelism import Ddp
from dream.update.update import Knobs

_HERE = "dream.adapters.pytorch.parallel.split"
SPLITS: Mapping[object, str] = {
    "tensor": f"{_HERE}.tensor:Tensor",
    "pipeline": f"{_HERE}.pipeline:Pipeline",
    "layers": f"{_HERE}.placed:Placed",
}
SHARDS: Mapping[object, str] = {
    1: f"{_HERE}.sharded_state:ShardedState",
    2: f"{_HERE}.sharded:Sharded",
    3: f"{_HERE}.sharded:Sharded",
}


def model_parallel(plan: Plan) -> Adapter:
    """`model_parallel` and `hybrid`, by how the model is split."""
    if plan.options["split"] != "layers" and _alone(plan):
        return TorchAdapter(Ddp(plan))
    adapter: Adapter = _registry.load(SPLITS[plan.options["split"]])(plan)
    return adapter


def sharded(plan: Plan) -> Adapter:
    """`sharded`, by what is sharded."""
    if _alone(plan):
        return TorchAdapter(Ddp(plan))
    adapter: Adapter = _registry.load(SHARDS[plan.options["zero"]])(plan)
    return adapter


def _alone(plan: Plan) -> bool:
    """Whether there is one rank, which splits nothing, and a knob to honour."""
    return plan.cluster.alone and Knobs.of(plan.options).asked
