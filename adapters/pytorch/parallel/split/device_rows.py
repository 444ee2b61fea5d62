"""Copies of a model whose layers lie on devices, side by side: a row of devices each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from dream._mesh import Mesh
from dream.adapters.pytorch.parallel.replicas import primitives
from dream.adapters.pytorch.parallel.replicas.primitives import (
    Place,
    connected,
    copy_of,
    leaf,
    results,
    submit,
)
from dream.adapters.pytorch.parallel.replicas.train import Scored, Team
from dream.adapters.pytorch.parallel.split.flow import Flow
from dream.adapters.pytorch.parallel.split.flowing import Device, flow_through
from dream.adapters.pytorch.parallel.split.tracing import (
    Call,
    call_of,
    looked_into,
    state_key,
    trace,
)


@final
class Placement:
    """Where the layers of one model lie.

    places: a layer's name -> its device in a row. opened: the modules that are looked into.
    """

    def __init__(self, model: nn.Module, places: Mapping[str, int], opened: frozenset[str]) -> None:
        self._model, self._places, self.opened = model, places, opened
        self._flows: dict[object, Flow] = {}

    def flow(self, call: Call) -> Flow:
        """The flow of a call, made on first use."""
        key = call.key, state_key(self._model, self.opened)
        if key not in self._flows:
            graph = trace(self._model, call, self.opened)
            self._flows[key] = Flow(self._model, graph, self._places)
        return self._flows[key]

    def device_of(self, name: str) -> int:
        """The device of a parameter or buffer, by its name in the model."""
        parts = name.split(".")
        layers = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        return next((self._places[layer] for layer in layers if layer in self._places), 0)


@final
class Rows(Team):
    """`data` rows of `model` devices each; every device has a thread of its own.

    place: where the layers of a model lie.
    """

    def __init__(
        self,
        devices: Sequence[torch.device],
        mesh: Mesh,
        place: Callable[[nn.Module], Placement],
    ) -> None:
        self.size, self.first = mesh.data, devices[0]
        self._rows = [
            [Device(f"dream-device-{index}", devices[index]) for index in mesh.copy_of(first)]
            for first in range(0, mesh.size, mesh.model)
        ]
        self._place = place
        self._placements: WeakKeyDictionary[nn.Module, Placement] = WeakKeyDictionary()

    def settle(self, model: nn.Module) -> Placement:
        """Place a model's layers, on first use, in the first row."""
        if model not in self._placements:
            placement = self._placements[model] = self._place(model)
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                tensor.data = tensor.data.to(self._rows[0][placement.device_of(name)].device)
        return self._placements[model]

    def expect(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.settle(module).flow(call_of(module, args, kwargs))

    def opened(self, module: nn.Module) -> Collection[str]:
        return looked_into(module, self.settle(module).opened)

    def replicas(self, module: nn.Module, count: int) -> list[nn.Module]:
        places = [self._place_in(row, module) for row in range(1, count)]
        copied = connected(places) if torch.is_grad_enabled() else map(leaf, places)
        return [module, *(copy_of(module, each) for each in copied)]

    def leaves(self, scored: Scored, index: int) -> Scored:
        place = self._place_in(index, scored.model, "model.")
        return copy_of(scored, leaf(place)) if index else scored

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
        flow = self.settle(module).flow(call)
        inputs: dict[fx.Node, Any] = {node: call.tensors[str(node.target)] for node in flow.inputs}
        output = flow_through(replica, flow, inputs, self._rows[index])
        home = next(iter(tree_leaves(call.tensors)), torch.zeros(())).device
        return tree_map(lambda x: x.to(home) if isinstance(x, torch.Tensor) else x, output)

    def apply(self, functions: Sequence[Callable[..., Any]], parts: Sequence[Any]) -> list[Any]:
        if len(parts) == 1:
            return [functions[0](*parts[0])]
        return results(
            [
                submit(f"dream-row-{index}", self._rows[index][0].device, partial(act, *part))
                for index, (act, part) in enumerate(zip(functions, parts, strict=True))
            ]
        )

    def _place_in(self, row: int, model: nn.Module, prefix: str = "") -> Place:
        """Of a copy in a row. prefix: of the model's names in what is copied."""
        placement, devices = self.settle(model), self._rows[row]
        return lambda name: devices[placement.device_of(name.removeprefix(prefix))].device
