"""split="tensor": layers in parts along the model axis, batches along the data axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from dream._adapter import Plan
from dream.adapters.tensorflow.parallel.split import tensor_plan
from dream.adapters.tensorflow.parallel.split.base import MeshAdapter
from dream.adapters.tensorflow.parallel.split.dtensor import Specs
from dream.adapters.tensorflow.parallel.split.layouts import Layouts, whole
from dream.adapters.tensorflow.parallel.split.place import Place, connect


@final
class Tensor(MeshAdapter):
    """`model_parallel` and `hybrid` with split="tensor"."""

    def _connect(self, plan: Plan) -> Place:
        data, model = plan.options["data"], plan.options["model"]
        assert data is None or isinstance(data, int)
        assert model is None or isinstance(model, int)
        if plan.spec.name == "model_parallel" and data is None and model is None:
            data = 1
        return connect(plan, data=data, model=model, spare="model")

    def _layouts(self, plan: Plan) -> Layouts:
        chosen = plan.options["plan"]
        assert isinstance(chosen, (str, dict))
        return Planned(chosen, self._place.axes.model)


@final
class Planned(Layouts):
    """Variables lie as a plan says, and so does what layers compute with them."""

    gathers = False

    def __init__(self, plan: Mapping[str, object] | str, parts: int) -> None:
        self._plan = plan
        self._parts = parts

    def of_model(self, model: Any) -> dict[str, Specs]:
        found: dict[str, Specs] = {v.path: whole(v.shape) for v in model.variables}
        if self._parts == 1:
            return found
        ways = tensor_plan.ways(model, self._plan, self._parts)
        for layer in tensor_plan.leaves(model):
            if way := ways.get(tensor_plan.path_of(layer)):
                found |= tensor_plan.specs(layer, way, self._parts)
        return found

    def of_state(self, shape: Sequence[int], specs: Specs) -> Specs:
        return specs
