"""`sharded` with zero=1: replicas in step, of which each keeps a shard of the optimizer's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.optim import Optimizer

from dream._adapter import Loss, Plan, Step, Weight
from dream._errors import Unsupported
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.parallel.ddp.parallelism import Averaging
from dream.adapters.pytorch.parallel.one_copy.update import ELEMENTWISE
from dream.adapters.pytorch.parallel.sharding import saving
from dream.adapters.pytorch.parallel.sharding.mesh_placement import own_group, shards_mesh_of
from dream.collectives import Communicator
from dream.strategies.options import REPLICAS


@final
class ZeroOne(Averaging):
    """DDP on all ranks; the ranks of a row of the mesh hold one state together."""

    keras_block = None

    def __init__(self, plan: Plan) -> None:
        options = {option.name: option.default for option in REPLICAS}
        options |= {name: value for name, value in plan.options.items() if name in options}
        super().__init__(replace(plan, options=options))
        mesh = shards_mesh_of(plan)
        rows = [mesh.copy_of(index * mesh.model) for index in range(mesh.data)]
        shape, axes = (mesh.data, mesh.model), ("replica", "shard")
        made = None
        if mesh.size > 1:
            made = init_device_mesh(self.device.type, shape, mesh_dim_names=axes)
        self._optimizers = RowOptimizers(RowShards(own_group(self.world, rows)), made)

    def subscribe(self, hooks: Hooks) -> None:
        super().subscribe(hooks)
        saving.begin(self.world)
        hooks.wrap("save", saving.saving_wholes)
        if self.world.world_size == 1:
            hooks.made("optimizer", self.adopt)

    def adopt(self, optimizer: Optimizer) -> None:
        super().adopt(optimizer)
        self._optimizers.take(optimizer)

    def train_step(
        self, model: nn.Module, loss: Loss, optimizer: Optimizer, weight: Weight | None
    ) -> Step:
        self._optimizers.take(optimizer)
        return super().train_step(model, loss, optimizer, weight)


_BY_ELEMENT = {*ELEMENTWISE}
"""What these do to an element depends on no other one, so rows may be stepped by themselves."""


@final
class RowOptimizers:
    """The optimizers of one strategy."""

    def __init__(self, rows: RowShards, mesh: DeviceMesh | None) -> None:
        self._rows = rows
        self._mesh = mesh
        self._known: WeakSet[Optimizer] = WeakSet()

    def take(self, optimizer: Optimizer) -> None:
        if optimizer in self._known:
            return
        if type(optimizer) not in _BY_ELEMENT:
            raise Unsupported(
                "The state of this optimizer cannot be sharded by rows, since a step may look at "
                f"a whole parameter. Received: {type(optimizer).__name__} with zero=1. Use zero=2 "
                f"or zero=3; or one of {', '.join(sorted(kind.__name__ for kind in _BY_ELEMENT))}."
            )
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _refuse_meta(parameter)
        self._known.add(optimizer)
        if self._rows.parts == 1:
            return
        step = _RowStep(self._rows)
        states = None if self._mesh is None else _RowStates(self._rows, self._mesh)
        if states is not None:
            states.shard(optimizer)
            optimizer.register_step_pre_hook(states.begin)
        optimizer.register_step_pre_hook(step.before)
        optimizer.register_step_post_hook(step.after)
        if states is not None:
            optimizer.register_state_dict_post_hook(states.tell)
            optimizer.register_load_state_dict_pre_hook(states.take)


def _refuse_meta(parameter: torch.Tensor) -> None:
    if parameter.is_meta:
        raise Unsupported(
            "Under zero=1 each rank holds the whole parameters, so making them on the meta device "
            f"saves nothing. Received: a meta parameter of shape {tuple(parameter.shape)}. Make "
            "the model on its real device, or use zero=2 or zero=3."
        )


@final
class _RowStep:
    """Around a step, parameters and gradients are this rank's rows of them."""

    def __init__(self, rows: RowShards) -> None:
        self._rows = rows
        self._whole: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a closure is called here, since it needs the whole parameters; its loss is given
        back by one that stands in for it."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            args, kwargs = args[:1], {**kwargs, "closure": lambda: loss}
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        for gradient in (p.grad for p in stepped):
            if gradient is not None and gradient.is_sparse:
                raise Unsupported(
                    "Under zero=1 an optimizer steps a rank's rows of dense gradients. Received: a "
                    f"sparse gradient of shape {tuple(gradient.shape)}. Pass sparse=False, or use "
                    "'mirrored'."
                )
        for parameter in stepped:
            if (gradient := parameter.grad) is not None:
                self._whole.append((parameter, parameter.data, gradient))
                parameter.grad = None
                parameter.data = self._rows.of(parameter.data)
                parameter.grad = self._rows.of(gradient)
        return args, kwargs

    def after(self, *_: Any) -> None:
        for parameter, data, gradient in self._whole:
            parameter.grad = None
            parameter.data = data
            parameter.grad = gradient
        self._rows.gather([data for _, data, _ in self._whole])
        self._whole.clear()


@final
class _RowStates:
    """An optimizer's state as it is told and taken: DTensors, which know what they are parts of."""

    def __init__(self, rows: RowShards, mesh: DeviceMesh) -> None:
        self._rows = rows
        self._mesh = mesh
        self._begun = False

    def begin(self, optimizer: Optimizer, *_: Any) -> None:
        """Shard what the optimizer's own constructor made, as Adagrad's does, before its first
        step."""
        if not self._begun:
            self._begun = True
            self.shard(optimizer)

    def shard(self, optimizer: Optimizer) -> None:
        """Shard state that was there before."""
        for parameter, entries in optimizer.state.items():
            for name, value in entries.items():
                if _is_whole(value, parameter):
                    entries[name] = self._rows.of(value).clone()

    def tell(self, optimizer: Optimizer, told: dict[str, Any]) -> dict[str, Any]:
        """Tell the state in DTensors: a hook after state_dict."""
        return _each_entry(optimizer, told, self._to_dtensor)

    def take(self, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        """Take this rank's rows of a state: a hook before load_state_dict."""
        return _each_entry(optimizer, given, self._to_local)

    def _to_dtensor(self, value: Any, parameter: torch.Tensor) -> Any:
        own = self._rows.of(parameter)
        if not isinstance(value, torch.Tensor) or parameter.dim() == 0 or value.shape != own.shape:
            return value
        axes = self._mesh.ndim
        placements: list[Placement] = [*(Replicate() for _ in range(axes - 1)), Shard(0)]
        return DTensor.from_local(
            value, self._mesh, placements, run_check=False,
            shape=parameter.shape, stride=parameter.stride(),
        )  # fmt: skip

    def _to_local(self, value: Any, parameter: torch.Tensor) -> Any:
        if isinstance(value, DTensor):
            return value.to_local().clone()
        return self._rows.of(value).clone() if _is_whole(value, parameter) else value


def _is_whole(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == parameter.shape


def _each_entry(
    optimizer: Optimizer, told: dict[str, Any], change: Callable[[Any, torch.Tensor], Any]
) -> dict[str, Any]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        key: {name: change(value, parameters[key]) for name, value in entries.items()}
        for key, entries in told["state"].items()
    }
    return {**told, "state": state}


@final
class RowShards:
    """Parameters cut along dim 0 into one run of rows a rank, the first ones no shorter.

    A parameter of no dim has no rows: every rank steps it.
    """

    def __init__(self, among: Communicator) -> None:
        self._among = among.unchecked()  # parameters are known to be alike

    @property
    def parts(self) -> int:
        return self._among.world_size

    def of(self, tensor: torch.Tensor, rank: int | None = None) -> torch.Tensor:
        """Return a view of a rank's rows; of this rank's by default."""
        if tensor.dim() == 0:
            return tensor
        rank = self._among.rank if rank is None else rank
        each = -(-len(tensor) // self.parts)
        return tensor[min(rank * each, len(tensor)) : (rank + 1) * each]

    def gather(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put every rank's rows of each tensor on every rank, in place. One collective a dtype."""
        kinds = dict.fromkeys(tensor.dtype for tensor in tensors)
        for kind in kinds:
            self._gather([t for t in tensors if t.dtype == kind and t.dim() > 0])

    def _gather(self, tensors: Sequence[torch.Tensor]) -> None:
        if not tensors:
            return
        longest = sum(self.of(tensor, 0).numel() for tensor in tensors)
        own = torch.cat([self.of(tensor).reshape(-1) for tensor in tensors])
        padded = own.new_zeros(longest)
        padded[: len(own)] = own
        every = self._among.all_gather(padded).view(self.parts, longest)
        for rank, row in enumerate(every):
            begin = 0
            for tensor in tensors:
                place = self.of(tensor, rank)
                place.copy_(row[begin : begin + place.numel()].view(place.shape))
                begin += place.numel()
