"""A module whose parameters, gradients and optimizer state are sharded by FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from dream._errors import Unsupported
from dream.adapters.pytorch.parallel.split import fsdp
from dream.adapters.pytorch.parallel.split.meta import Blueprints, is_meta
from dream.adapters.pytorch.parallel.split.room import Adopted, Room
from dream.adapters.pytorch.parallel.split.root import Forward, SplitRoot, cut_loaded
from dream.adapters.pytorch.parallel.split.units import callable_itself, units_of

Owned = list[tuple[nn.Module, str]]


@final
class ShardedRoot(SplitRoot):
    """reshard: whether gathered parameters are given up between forward and backward."""

    def __init__(
        self,
        module: nn.Module,
        room: Room,
        inner: Forward | None,
        *,
        mesh: DeviceMesh,
        device: torch.device,
        reshard: bool,
    ) -> None:
        super().__init__(module, room, inner)
        self._mesh = mesh
        self._device = device
        self._reshard = reshard
        self._units: list[FSDPModule] = []
        self._scale = 1.0
        self._gathered: dict[int, nn.Parameter] = {}
        self._scaled: dict[int, RemovableHandle] = {}

    def cut(self) -> None:
        _check_runs_first(self.module)
        self.rest()
        blueprints = Blueprints(self.module) if is_meta(self.module) else None
        self.room.cast(self.module)
        whole = not any(isinstance(part, FSDPModule) for part in self.module.modules())
        for unit in (*self.room.apart(self.module), *units_of(self.module)):
            self._shard(unit, reshard=self._reshard)
        if callable_itself(self.module) and (whole or _unsharded(self.module)):
            self._shard(self.module, reshard=None if self._reshard else False)
        _check_all_sharded(self.module)
        if blueprints is not None:
            blueprints.fill(self.module, self._device, self.room.world)
            self.parts = _by_id(self.module)
        if whole and isinstance(self.module, FSDPModule):
            fsdp.begin(self.module)

    def weigh(self, weight: float) -> None:
        if weight == self._scale:
            return
        for handle in self._scaled.values():
            handle.remove()
        self._scaled.clear()
        self._scale = weight
        self._scale_gradients()

    def gather(self, *, fresh: bool, completes: bool) -> None:
        """Until the update is complete, whole gradients wait in what is gathered."""
        if fresh:  # what is left there is of an update that was dropped
            for parameter in self._gathered.values():
                parameter.grad = None
        for unit in self._units:
            unit.set_requires_gradient_sync(completes, recurse=False)

    @property
    def gathering(self) -> list[nn.Parameter]:
        return [*self.parts.values(), *self._gathered.values()]

    def rest(self) -> None:
        for unit in self._units:
            unit.reshard()

    def keep_gathered(self, keep: bool) -> None:
        """Whether a backward pass leaves the parameters gathered, for a second one through it."""
        for unit in self._units:
            unit.set_reshard_after_backward(not keep, recurse=False)

    def of_copy(self, module: nn.Module) -> Adopted:
        return Adopted(module, self.room, copied=True)

    def _shard(self, module: nn.Module, *, reshard: bool | None) -> None:
        if isinstance(module, FSDPModule):
            return
        own = _unsharded(module)
        _make_whole(own)
        _check_dtypes(module, own)
        module.register_forward_hook(_without_views)  # before FSDP2's own
        unit = fsdp.shard(module, self._mesh, reshard=reshard)
        module.register_forward_pre_hook(partial(self._running, own))
        module.register_load_state_dict_pre_hook(cut_loaded)
        self._units.append(unit)
        self.parts.update(_by_id(module))

    def _running(self, own: Owned, *_: Any) -> None:
        """A unit is about to run, its parameters gathered."""
        for module, name in own:
            parameter = module._parameters[name]
            assert parameter is not None
            if id(parameter) not in self._gathered:
                self._gathered[id(parameter)] = parameter
                if self.room.updates is not None:
                    self.room.updates.held.watch([parameter])
        self._scale_gradients()

    def _scale_gradients(self) -> None:
        """Have gradients scaled before they are added up over the ranks."""
        if self._scale == 1.0:
            return
        scale: Callable[..., torch.Tensor] = (
            torch.zeros_like if self._scale == 0.0 else partial(torch.mul, self._scale)
        )
        for parameter in self._gathered.values():
            if parameter.requires_grad and id(parameter) not in self._scaled:
                self._scaled[id(parameter)] = parameter.register_hook(scale)


def _without_views(_: nn.Module, __: Any, output: Any) -> Any:
    """FSDP2 hooks what a unit gives; changed in place, a view would lose that hook, and backward
    would begin without the unit's parameters."""
    return tree_map(_without_view, output)


def _without_view(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.requires_grad and value._is_view():
        return value.clone()
    return value


def _by_id(module: nn.Module) -> dict[int, nn.Parameter]:
    return {id(parameter): parameter for parameter in module.parameters()}


def _unsharded(module: nn.Module) -> Owned:
    """(module, name) of each parameter that FSDP2 would shard with the module."""
    return [
        (part, name)
        for part in _managed(module, module)
        for name, parameter in part._parameters.items()
        if parameter is not None
    ]


def _managed(module: nn.Module, top: nn.Module) -> list[nn.Module]:
    if module is not top and isinstance(module, FSDPModule):
        return []
    return [module, *(part for child in module.children() for part in _managed(child, top))]


def _make_whole(own: Owned) -> None:
    """Copies of sharded modules hold shards: FSDP2 begins with whole parameters."""
    for module, name in own:
        parameter = module._parameters[name]
        if isinstance(parameter, DTensor):
            whole = nn.Parameter(parameter.full_tensor(), requires_grad=parameter.requires_grad)
            module._parameters[name] = whole


def _check_dtypes(module: nn.Module, own: Owned) -> None:
    dtypes = {
        p.dtype
        for part, name in own
        if (p := part._parameters[name]) is not None and p.requires_grad
    }
    if len(dtypes) > 1:
        raise Unsupported(
            "Parameters that are gathered together must be of one dtype. Received: "
            f"{', '.join(sorted(map(str, dtypes)))} in {type(module).__name__}. Put those of "
            "another dtype into a child module, or use 'mirrored'."
        )


def _check_runs_first(module: nn.Module) -> None:
    """What makes a weight from others and buffers runs whenever the weight is looked at, so before
    the whole model; FSDP2 then takes it for a model of its own."""
    for name, part in module.named_modules():
        if isinstance(part, ParametrizationList) and any(True for _ in part.buffers()):
            kinds = ", ".join(type(each).__name__ for each in part)
            raise Unsupported(
                "A parametrization with buffers runs before the model that it is part of, and "
                f"FSDP2 refuses that. Received: {name or 'a weight'} ({kinds}). Use 'mirrored', or "
                "split='tensor', which leave it whole."
            )


def _check_all_sharded(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if not isinstance(parameter, DTensor):
            raise Unsupported(
                "A parameter is in no module that can gather it. Received: "
                f"{name} of {type(module).__name__}. It must be in a module with a forward pass, "
                "when that is split and not later; or use 'mirrored'."
            )
