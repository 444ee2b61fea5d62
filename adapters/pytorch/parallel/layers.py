"""`split="layers"`: the layers of a model on the devices of one process, in copies side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import fx, nn
from torch.utils.weak import WeakIdKeyDictionary

from dream._adapter import Plan
from dream._errors import ConfigurationError, Unsupported, unknown
from dream._log import logger
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
from dream.adapters.pytorch.parallel.snapshot import OF_MODULES
from dream.adapters.pytorch.private import sees_outputs, tables, tree_leaves, tree_map
from dream.adapters.pytorch.randomness.calls import DROPS
from dream.adapters.pytorch.randomness.current import same, state


@final
class LayersOnDevices(OneProcess):
    """Each device runs its layers as soon as what they need is there, beside the others."""

    def _gather(self, plan: Plan) -> Team:
        data: Any = plan.options["data"]
        places: Any = plan.options["place"]
        model = devices_of_row(plan)
        here = devices.several(plan, fewest=(data or 1) * (model or 1))
        mesh = Mesh.fit(len(here), data=data, model=model, spare="model")
        return DeviceGrid(here, mesh, partial(placed, places, mesh.model))

    def _settle(self, model: nn.Module) -> None:
        assert isinstance(self._team, DeviceGrid)
        self._team.settle(model)


def devices_of_row(plan: Plan) -> int | None:
    """Return how many devices a copy of the model is asked to lie on; None where nothing says."""
    places: Any = plan.options["place"]
    model: Any = plan.options["model"]
    if places is not None and model is None:
        return 1 + max((_index(places, name) for name in places), default=0)
    asked: int | None = model
    return asked


def placed(places: Mapping[str, int] | None, devices: int, model: nn.Module) -> LayerPlacement:
    """Place a model's layers: where the user puts them, or in order, evened out."""
    if places is not None:
        return _by_name(model, places, devices)
    if devices == 1 or not any(model.children()):
        return LayerPlacement(model, {}, frozenset())
    stages = most_stages(model, devices, parameter_costs(model))
    sequence = LayerSequence(model, trace(model, likely_call(model), stages.opened))
    starts = stages.positions(sequence)
    found = {
        layer.name: sum(start <= at for start in starts) for at, layer in enumerate(sequence.layers)
    }
    return LayerPlacement(model, found, stages.opened)


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
                f"{layer.name!r}. Add it to place=, or remove place=."
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
        self.draws = _Draws(model)

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


_WATCHED = 2
"""Training calls whose segments run one after the other, to see whether they draw."""


@final
class _Draws:
    """Whether the layers of one model draw random numbers: branches would by whoever comes first.

    any: they do, or may.
    """

    def __init__(self, model: nn.Module) -> None:
        self._name = type(model).__name__
        self._drew = any(isinstance(part, DROPS) for part in model.modules())
        self._left = _WATCHED

    @property
    def any(self) -> bool:
        return self._drew or self._left > 0

    @property
    def looks(self) -> bool:
        """Whether this is one of the first training calls."""
        return self._left > 0 and torch.is_grad_enabled()

    @contextmanager
    def watched(self, *, training: bool) -> Iterator[None]:
        """See whether a call does."""
        before, side_by_side = None if self._drew else state(), not self.any
        yield
        if before is None:
            return
        self._left -= training and self._left > 0
        self._drew = not same(before, state())
        if self._drew and side_by_side:
            logger.info(
                "a call of %s draws random numbers, which its first calls did not: in this call "
                "they differ from those of one device", self._name,
            )  # fmt: skip


def _check_kept(model: nn.Module) -> None:
    """Raise where a loss may be computed of what a call leaves beside its output: each device's
    layers have a graph of their own, which ends there."""
    for name, part in model.named_modules():
        what = "a hook that sees its output" if sees_outputs(part) else ""
        own = vars(part).keys() - OF_MODULES.union(*tables(part))
        for attribute in sorted(own):
            value = vars(part)[attribute]
            if any(isinstance(x, torch.Tensor) and x.grad_fn for x in tree_leaves(value)):
                what = f"what its forward pass leaves in {attribute}"
        if what:
            raise Unsupported(
                "Layers on devices of their own give gradients for what the model's forward "
                f"returns alone. Received: {type(part).__name__} {name!r} with {what}. Return it, "
                "or use 'data_parallel' or 'mirrored'."
            )


@final
class DeviceGrid(Team):
    """`data` rows of `model` devices each; every device has a thread of its own.

    place: where the layers of a model lie. in_order: a row's devices act one after the other.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        mesh: Mesh,
        place: Callable[[nn.Module], LayerPlacement],
        *,
        in_order: bool = False,
    ) -> None:
        self.size, self.first = mesh.data, devices[0]
        self._rows = [
            [DeviceThread(f"dream-device-{index}", devices[index]) for index in mesh.copy_of(first)]
            for first in range(0, mesh.size, mesh.model)
        ]
        self._place, self._in_order = place, in_order
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
        placement = self.settle(module)
        graph, draws = placement.segments(call), placement.draws
        inputs: dict[fx.Node, Any] = {node: call.tensors[str(node.target)] for node in graph.inputs}
        row = self._rows[index]
        with draws.watched(training=module.training and torch.is_grad_enabled()):
            in_order = self._in_order or draws.any
            output = run_segments(replica, graph, inputs, row, in_order=in_order)
            if draws.looks:
                _check_kept(replica)
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
