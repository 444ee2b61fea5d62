"""`split="layers"`: the layers of a model on the devices of one process, in copies side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, final

import torch
from torch import fx, nn
from torch.utils.weak import WeakIdKeyDictionary

from dream._adapter import Plan
from dream._errors import ConfigurationError, unknown
from dream._topology import Mesh
from dream.adapters.pytorch import devices
from dream.adapters.pytorch.parallel.layer_segments import DeviceThread, SegmentGraph, run_segments
from dream.adapters.pytorch.parallel.pipeline.stages import most_stages, parameter_costs
from dream.adapters.pytorch.parallel.replicas import primitives
from dream.adapters.pytorch.parallel.replicas.parallelism import OneProcess
from dream.adapters.pytorch.parallel.replicas.primitives import (
    Place,
    connected,
    copy_of,
    leaf,
    results,
    submit,
)
from dream.adapters.pytorch.parallel.replicas.train import Team
from dream.adapters.pytorch.parallel.sharding.graph import (
    ForwardCall,
    LayerSequence,
    call_of,
    likely_call,
    parents_of,
    state_key,
    trace,
    traced_modules,
)
from dream.adapters.pytorch.private import tree_leaves, tree_map


@final
class LayersOnDevices(OneProcess):
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
        return DeviceGrid(here, self._mesh, self._placement)

    def _settle(self, model: nn.Module) -> None:
        assert isinstance(self._team, DeviceGrid)
        self._team.settle(model)

    def _placement(self, model: nn.Module) -> LayerPlacement:
        if self._places is not None:
            return _by_name(model, self._places, self._mesh.model)
        if self._mesh.model == 1 or not any(model.children()):
            return LayerPlacement(model, {}, frozenset())
        stages = most_stages(model, self._mesh.model, parameter_costs(model))
        sequence = LayerSequence(model, trace(model, likely_call(model), stages.opened))
        starts = stages.positions(sequence)
        places = {
            layer.name: sum(start <= at for start in starts)
            for at, layer in enumerate(sequence.layers)
        }
        return LayerPlacement(model, places, stages.opened)


def _by_name(model: nn.Module, places: Mapping[str, int], devices: int) -> LayerPlacement:
    """Place the layers where the user puts them, those inside along with them."""
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
    opened = parents_of(places)
    sequence = LayerSequence(model, trace(model, likely_call(model), opened))
    found: dict[str, int] = {}
    for layer in sequence.layers:
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
    return LayerPlacement(model, found, opened)


def _index(places: Mapping[str, Any], name: str) -> int:
    index = places[name]
    if type(index) is not int or index < 0:
        raise ConfigurationError(
            "A device is named by its number in the row. Received: "
            f"place={{{name!r}: {index!r}}}. Use 0, 1, and so on."
        )
    return index


@final
class LayerPlacement:
    """Where the layers of one model lie.

    places: a layer's name -> its device in a row. opened: the modules that are looked into.
    """

    def __init__(self, model: nn.Module, places: Mapping[str, int], opened: frozenset[str]) -> None:
        self._model, self._places, self.opened = model, places, opened
        self._graphs: dict[object, SegmentGraph] = {}

    def segments(self, call: ForwardCall) -> SegmentGraph:
        """Return the segments of a call, made on first use."""
        key = call.key, state_key(self._model, self.opened)
        if key not in self._graphs:
            graph = trace(self._model, call, self.opened)
            self._graphs[key] = SegmentGraph(self._model, graph, self._places)
        return self._graphs[key]

    def device_of(self, name: str) -> int:
        """Return the device of a parameter or buffer, by its name in the model."""
        parts = name.split(".")
        layers = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((self._places[layer] for layer in layers if layer in self._places), 0)


@final
class DeviceGrid(Team):
    """`data` rows of `model` devices each; every device has a thread of its own.

    place: where the layers of a model lie.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        mesh: Mesh,
        place: Callable[[nn.Module], LayerPlacement],
    ) -> None:
        self.size, self.first = mesh.data, devices[0]
        self._rows = [
            [DeviceThread(f"dream-device-{index}", devices[index]) for index in mesh.copy_of(first)]
            for first in range(0, mesh.size, mesh.model)
        ]
        self._place = place
        self._placements: MutableMapping[nn.Module, LayerPlacement] = WeakIdKeyDictionary()

    def settle(self, model: nn.Module) -> LayerPlacement:
        """Place a model's layers, on first use, in the first row."""
        if model not in self._placements:
            placement = self._placements[model] = self._place(model)
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.data = tensor.data.to(self._rows[0][placement.device_of(name)].device)
        return self._placements[model]

    def expect(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.settle(module).segments(call_of(module, args, kwargs))

    def opened(self, module: nn.Module) -> Collection[str]:
        return traced_modules(module, self.settle(module).opened)

    def replicas(self, module: nn.Module, count: int) -> list[nn.Module]:
        places = [self._place_in(row, module) for row in range(1, count)]
        copied = connected(places) if torch.is_grad_enabled() else map(leaf, places)
        return [module, *(copy_of(module, each) for each in copied)]

    def scatter(self, batch: Any) -> list[Any]:
        return primitives.scatter(batch, [torch.device("cpu")] * self.size)

    def call(
        self,
        index: int,
        module: nn.Module,
        replica: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        call = call_of(replica, args, kwargs)
        graph = self.settle(module).segments(call)
        inputs: dict[fx.Node, Any] = {node: call.tensors[str(node.target)] for node in graph.inputs}
        output = run_segments(replica, graph, inputs, self._rows[index])
        home = next(iter(tree_leaves(call.tensors)), torch.zeros(())).device
        return tree_map(lambda x: x.to(home) if isinstance(x, torch.Tensor) else x, output)

    def apply(
        self, functions: Sequence[Callable[..., Any]], parts: Sequence[Any], first: int = 0
    ) -> list[Any]:
        if len(parts) == 1:
            return [functions[0](*parts[0])]
        return results(
            [
                submit(f"dream-row-{row}", self._rows[row][0].device, partial(act, *part))
                for row, (act, part) in enumerate(zip(functions, parts, strict=True), first)
            ]
        )

    def _place_in(self, row: int, model: nn.Module) -> Place:
        """Return where a copy in a row lies."""
        placement, devices = self.settle(model), self._rows[row]
        return lambda name: devices[placement.device_of(name)].device
