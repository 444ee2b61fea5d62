"""`sharded`: each device holds its part of the parameters and the optimizer's state."""

from __future__ import annotations

from typing import final

from dream._adapter import Plan
from dream._errors import Unsupported
from dream.adapters.tensorflow.parallel.split.base import MeshAdapter
from dream.adapters.tensorflow.parallel.split.layouts import Layouts, Shards
from dream.adapters.tensorflow.parallel.split.place import Place, connect


@final
class Sharded(MeshAdapter):
    """Parameters are gathered where a layer uses them, and gradients are shared out again."""

    def _connect(self, plan: Plan) -> Place:
        if plan.options["data"] not in (None, 1):
            raise Unsupported(
                "A DTensor's dim lies along one axis of the mesh, so a batch cannot be shared by "
                f"groups of ranks and again within them. Received: data={plan.options['data']}. "
                "Leave data out, or use 'hybrid' with split='tensor'."
            )
        return connect(plan, data=None, model=1, spare="data")

    def _layouts(self, plan: Plan) -> Layouts:
        zero = plan.options["zero"]
        assert isinstance(zero, int)
        return Shards(self._place.axes.data, zero)
