"""`split="layers"`: the layers of a model on the devices of one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from torch import nn

from dream._adapter import Plan
from dream._errors import ConfigurationError, unknown
from dream._mesh import Mesh
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.parallel.replicas.parallelism import OneProcess
from dream.adapters.pytorch.parallel.replicas.train import Team
from dream.adapters.pytorch.parallel.split.cutting import Outline
from dream.adapters.pytorch.parallel.split.device_rows import Placement, Rows
from dream.adapters.pytorch.parallel.split.stages import most, parameters_of
from dream.adapters.pytorch.parallel.split.tracing import likely_call, trace


@final
class Placed(OneProcess):
    """Each device runs its layers as soon as what they need is there, beside the others."""

    def _gather(self, plan: Plan) -> Team:
        if not plan.cluster.alone:
            raise ConfigurationError(
                "split='layers' drives the devices of one process. Received: world size "
                f"{plan.cluster.world_size}. Start it with `dream run -n 1`, or use "
                "split='pipeline'."
            )
        places: Any = plan.options["place"]
        self._places = places
        data, model = plan.options["data"], plan.options["model"]
        assert data is None or isinstance(data, int)
        assert model is None or isinstance(model, int)
        if places is not None and model is None:
            model = 1 + max((_index(places, name) for name in places), default=0)
        here = devices.several(plan, fewest=(data or 1) * (model or 1))
        self._mesh = Mesh.fit(len(here), data=data, model=model, spare="model")
        return Rows(here, self._mesh, self._placement)

    def _settle(self, model: nn.Module) -> None:
        assert isinstance(self._team, Rows)
        self._team.settle(model)

    def _placement(self, model: nn.Module) -> Placement:
        if self._places is not None:
            return _by_name(model, self._places, self._mesh.model)
        if self._mesh.model == 1:
            return Placement(model, {}, frozenset())
        if not any(model.children()):
            return Placement(model, {}, frozenset())
        stages = most(model, self._mesh.model, parameters_of(model))
        outline = Outline(model, trace(model, likely_call(model), stages.opened))
        starts = stages.positions(outline)
        places = {
            layer.name: sum(start <= at for start in starts)
            for at, layer in enumerate(outline.layers)
        }
        return Placement(model, places, stages.opened)


def _by_name(model: nn.Module, places: Mapping[str, int], devices: int) -> Placement:
    """The layers where the user puts them, those inside along with them."""
    known = dict(model.named_modules())
    for name in places:
        if name not in known or not name:
            raise unknown(f"layer of {type(model).__name__} in place=", name, filter(None, known))
        if not 0 <= _index(places, name) < devices:
            raise ConfigurationError(
                "A layer is placed on a device of its row. Received: "
                f"place={{{name!r}: {places[name]}}}, {devices} devices along the model axis. "
                f"Use 0 to {devices - 1}."
            )
    opened = {
        ".".join(parts[:length])
        for parts in (name.split(".") for name in places)
        for length in range(1, len(parts))
    }
    outline = Outline(model, trace(model, likely_call(model), frozenset(opened)))
    found: dict[str, int] = {}
    for layer in outline.layers:
        parts = layer.name.split(".")
        names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        chosen = next((name for name in names if name in places), None)
        if chosen is not None:
            found[layer.name] = places[chosen]
        elif any(True for _ in known[layer.name].parameters()):
            raise ConfigurationError(
                "Every layer with parameters needs a device. Received: place= without "
                f"{layer.name!r}. Add it to place=, or leave place= out."
            )
    return Placement(model, found, frozenset(opened))


def _index(places: Mapping[str, Any], name: str) -> int:
    index = places[name]
    if type(index) is not int or index < 0:
        raise ConfigurationError(
            "A device is named by its number in the row. Received: "
            f"place={{{name!r}: {index!r}}}. Use 0, 1, and so on."
        )
    return index
