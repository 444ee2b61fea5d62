"""A module some of whose layers are cut over the ranks of the model axis."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._pytree import tree_leaves, tree_map

from dream._errors import ConfigurationError, Unsupported
from dream.adapters.pytorch.parallel.split.alike import check_alike
from dream.adapters.pytorch.parallel.split.data_sum import DataSum
from dream.adapters.pytorch.parallel.split.meta import Blueprints, is_meta
from dream.adapters.pytorch.parallel.split.patterns import Cut
from dream.adapters.pytorch.parallel.split.room import Room
from dream.adapters.pytorch.parallel.split.root import Forward, SplitRoot, cut_loaded
from dream.adapters.pytorch.parallel.split.tensor_plan import After, TensorPlan, plan_of
from dream.adapters.pytorch.parallel.split.whole_tensors import (
    give_own,
    give_pieces,
    mode_off_in,
    take_pieces,
    turn_on,
    whole,
)
from dream.collectives import Communicator


@final
class TensorRoot(SplitRoot):
    """DTensor's column- and row-parallel layers. Gradients are added up along the data axis at the
    end of each backward pass."""

    def __init__(
        self,
        module: nn.Module,
        room: Room,
        inner: Forward | None,
        *,
        mesh: DeviceMesh,
        device: torch.device,
        asked: object,
        among: Communicator,
    ) -> None:
        """among: the ranks of one copy. asked: the plan."""
        super().__init__(module, room, inner)
        self._mesh = mesh
        self._device = device
        self._asked = asked
        self._sum = DataSum(room.dealt)
        self._halves: dict[int, str] = {}
        self._among = among
        self._compared = False

    def cut(self) -> None:
        whole = not any(isinstance(parameter, DTensor) for parameter in self.module.parameters())
        blueprints = Blueprints(self.module) if whole and is_meta(self.module) else None
        self.room.cast(self.module)
        if whole:
            self._cut(plan_of(self.module, self._asked, self._mesh.size()))
            if blueprints is not None:
                blueprints.fill(self.module, self._device, self.room.world)
        self._sum.watch(self.module.parameters())
        if self.room.updates is not None:
            new = [p for p in self.module.parameters() if id(p) not in self.parts]
            self.room.updates.held.watch(new)
        self.parts = {id(parameter): parameter for parameter in self.module.parameters()}

    def weigh(self, weight: float) -> None:
        self._sum.arm(weight)

    def gather(self, *, fresh: bool, completes: bool) -> None:
        self._sum.gather(fresh=fresh, completes=completes)

    @property
    def gathering(self) -> list[nn.Parameter]:
        return [*self.parts.values()]

    def rest(self) -> None:
        """Pieces are all there is."""

    def of_copy(self, module: nn.Module) -> None:
        return None

    def run_part(
        self, part: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if id(part) in self._halves:
            raise ConfigurationError(
                "A layer that gives each rank its own columns was called by itself. Received: a "
                f"call of {self._halves[id(part)]} of {type(self.module).__name__}. Call the "
                "module that it is part of, or say 'replicate' for it in plan=."
            )
        return tree_map(whole, self.run(forward, args, kwargs))

    def run_weighed(
        self,
        forward: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weight: float,
        *,
        counted: bool = False,
    ) -> Any:
        if not self._compared:
            self._compared = True
            check_alike(self._among, (args, kwargs))
        output = super().run_weighed(forward, args, kwargs, weight, counted=counted)
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(_refuse_second_gradients)
        return output

    def _cut(self, plan: TensorPlan) -> None:
        for name, cut in plan.cuts.items():
            layer = self.module.get_submodule(name)
            in_mode = any(f"{name}.".startswith(f"{owner}.") or not owner for owner in plan.modes)
            with mode_off_in(layer) if in_mode else nullcontext():
                self._cut_layer(name, layer, cut, plan)
        self.module.register_load_state_dict_pre_hook(cut_loaded)
        for name in plan.modes:
            turn_on(self.module.get_submodule(name), self._mesh)
        for part in self.module.modules():
            if isinstance(part, nn.TransformerEncoderLayer):
                part.activation_relu_or_gelu = 0  # no fused path, which knows no cut layers

    def _cut_layer(self, name: str, layer: nn.Module, cut: Cut, plan: TensorPlan) -> None:
        local, after = name in plan.local, plan.after.get(name, "whole")
        if cut == "row":
            take_pieces(layer)
        style = _row(local=local) if cut == "row" else _column(after, layer)
        parallelize_module(layer, self._mesh, style, src_data_rank=None)
        if cut == "column" and after == "cut":
            give_pieces(layer)
        if cut == "column" and after == "local":
            give_own(layer)
            self._halves[id(layer)] = name


def _refuse_second_gradients(_: torch.Tensor) -> None:
    """Gradients are on during a backward pass that is to be differentiated itself; DTensor would
    leave out what passes between ranks."""
    if torch.is_grad_enabled():
        raise Unsupported(
            "A gradient of a gradient cannot be taken through a model that is cut by tensors. "
            "Received: a backward pass with create_graph=True. Use 'sharded' or 'mirrored'."
        )


def _row(*, local: bool) -> ParallelStyle:
    """What is not known to be this rank's own columns is whole, or knows that it is cut."""
    return RowwiseParallel(input_layouts=Shard(-1) if local else Replicate())


def _column(after: After, layer: nn.Module) -> ParallelStyle:
    if after == "whole" or isinstance(layer, nn.Embedding):
        return ColwiseParallel(output_layouts=Replicate())
    return ColwiseParallel(use_local_output=after == "local")
