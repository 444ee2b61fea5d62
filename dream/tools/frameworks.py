"""Name the functions by which each framework's adapter serves the tools, to be loaded on use."""

from __future__ import annotations

from collections.abc import Mapping

_TORCH = "dream.adapters.pytorch.tools"
_TENSORFLOW = "dream.adapters.tensorflow.tools"
_KERAS = "dream.adapters.keras.tools"

PROBES: Mapping[str, str] = {
    "torch": f"{_TORCH}.port_check:TorchProbe",
    "keras": f"{_KERAS}.port_check:KerasProbe",
}
"""The Probe of a flavour of models, built from a model and a batch."""
OBSERVE: Mapping[str, str] = {
    "torch": f"{_TORCH}.verify:observe",
    "tensorflow": f"{_TENSORFLOW}.verify:observe",
    "keras": f"{_KERAS}.verify:observe",
}
"""Tells a Recorder of a framework's own training loops."""
PROFILE: Mapping[str, str] = {
    "torch": f"{_TORCH}.profile:observe",
    "tensorflow": f"{_TENSORFLOW}.profile:observe",
    "keras": f"{_KERAS}.profile:observe",
}
"""Tells a Profiler when phases of training begin and end."""
INSIDE_STEPS = f"{_TENSORFLOW}.profile:inside_steps"
"""Has a compiled step of Keras's tell a Profiler of its phases."""
TRAITS: Mapping[str, str] = {
    "keras.src.models.model.Model": f"{_KERAS}.verify:traits",
    "torch.nn.modules.module.Module": f"{_TORCH}.verify:traits",
}
"""Reads a model's traits, by the model's base class, the first that fits."""
NUDGE: Mapping[str, str] = {
    kind: where.replace(":traits", ":nudge") for kind, where in TRAITS.items()
}
"""Changes a model's parameters by a rounding, likewise; returns whether it has any yet."""
SKETCHERS: Mapping[str, str] = {
    "torch": f"{_TORCH}.planning.sketching:make_sketcher",
    "keras": f"{_TENSORFLOW}.planning.sketching:make_sketcher",
}
"""From a user's function to a Sketcher, by the flavour of its model."""
TRIALS: Mapping[str, str] = {
    "torch": f"{_TORCH}.planning.trial:run_trial",
    "keras": f"{_TENSORFLOW}.planning.trial:run_trial",
}
"""A measured training of a user's model, in a rank, by flavour."""
RATES: Mapping[str, str] = {
    "torch": f"{_TORCH}.planning.rates:measure_rates",
    "tensorflow": f"{_TENSORFLOW}.planning.trial:measure_rates",
}
"""Measures what a framework computes and moves a second on this machine."""
REFERENCES: Mapping[str, str] = {"torch": f"{_TORCH}.planning.rates:reference_model"}
"""Builds a small model, by which is read what strategies cost beside the operations themselves."""
CALLS: Mapping[str, str] = {"torch": f"{_TORCH}.planning.calls:time_calls"}
"""Times operations by themselves on this machine, by the calls of a sketch."""
TASKS: Mapping[str, str] = {
    "torch": f"{_TORCH}.tasks:train",
    "owned": f"{_TORCH}.tasks:train_by_steps",
    "keras": f"{_KERAS}.tasks:train",
    "step": f"{_TENSORFLOW}.tasks:train",
}
"""A function of (job, meter) that trains an embedded task in a rank, by flavour."""
