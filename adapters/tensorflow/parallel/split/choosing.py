"""`model_parallel` and `hybrid`: which adapter `split=` asks for."""

from __future__ import annotations

from dream._adapter import Adapter, Plan
from dream._errors import ConfigurationError

_PIPELINE = ("stages", "schedule", "microbatches", "balance")
_WITHOUT = {
    "pipeline": ("plan", "place"),
    "tensor": (*_PIPELINE, "place"),
    "layers": (*_PIPELINE, "plan"),
}
"""Options that say nothing of a split."""


def _check(plan: Plan) -> None:
    """Refuse what would be ignored."""
    split = str(plan.options["split"])
    for name in _WITHOUT[split]:
        if name in plan.options and plan.options[name] != plan.spec.option(name).default:
            raise ConfigurationError(
                f"Option {name!r} says nothing of split={split!r}. Received: "
                f"{name}={plan.options[name]!r}. Leave it out, or choose another split."
            )


def model_parallel(plan: Plan) -> Adapter:
    _check(plan)
    if plan.options["split"] == "tensor":
        from dream.adapters.tensorflow.parallel.split.tensor import Tensor

        return Tensor(plan)
    if plan.options["split"] == "layers":
        from dream.adapters.tensorflow.parallel.split.parted_adapter import PartedAdapter
        from dream.adapters.tensorflow.parallel.split.placed_layers import Layers

        return PartedAdapter(plan, Layers)
    return hybrid(plan)


def hybrid(plan: Plan) -> Adapter:
    _check(plan)
    if plan.options["split"] == "tensor":
        return model_parallel(plan)
    from dream.adapters.tensorflow.parallel.split.parted_adapter import PartedAdapter
    from dream.adapters.tensorflow.parallel.split.pipeline import Pipeline

    return PartedAdapter(plan, Pipeline)
