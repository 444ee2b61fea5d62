"""`split="tensor"`: layers cut over the model axis, gradients added up along the data axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, final
from weakref import ref

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from dream._errors import ConfigurationError, Desynchronized, Unsupported
from dream.adapters.pytorch import private
from dream.adapters.pytorch.hooks import Hooks
from dream.adapters.pytorch.loss.calls import call_at
from dream.adapters.pytorch.module import ModuleRegistry
from dream.adapters.pytorch.optimizer import Forward
from dream.adapters.pytorch.parallel.sharding.gradients import DataAxisSum
from dream.adapters.pytorch.parallel.sharding.meta import MetaInitializer, is_meta
from dream.adapters.pytorch.parallel.sharding.module import ShardContext, ShardedModule
from dream.adapters.pytorch.parallel.sharding.parallelism import Sharding
from dream.adapters.pytorch.parallel.sharding.parameters import shard_loaded
from dream.adapters.pytorch.parallel.tensor.local_shard import LocalShard, compute, to_whole
from dream.adapters.pytorch.parallel.tensor.plan import After, TensorPlan, plan_of
from dream.adapters.pytorch.private import (
    changeable,
    note,
    peek_transform,
    tree_leaves,
    tree_map,
)
from dream.collectives import Communicator
from dream.data.partition import Share

_COLUMNS = "dream.columns"
_MOST = 2000
"""Nodes of a graph that are looked at, between a loss and the outputs of modules."""


@final
class TensorParallel(Sharding):
    """Ranks along the model axis work on the same samples, each with its piece of the layers."""

    def make_mesh(self) -> tuple[DeviceMesh, ProcessGroup | None]:
        mesh = self.placement.mesh
        axes = ("data", "model")
        whole = init_device_mesh(self.device.type, (mesh.data, mesh.model), mesh_dim_names=axes)
        return whole["model"], whole["data"].get_group() if mesh.data > 1 else None

    def subscribe(self, hooks: Hooks) -> None:
        super().subscribe(hooks)
        hooks.wrap("backward", refusing_inner_losses)

    def adopt(self, optimizer: Optimizer) -> None:
        known = optimizer in self._guarded
        super().adopt(optimizer)
        if not (known or self.alone):
            optimizer.register_step_pre_hook(_one_by_one)

    def make(
        self, module: nn.Module, registry: ModuleRegistry, inner: Forward | None
    ) -> TensorParallelModule:
        return TensorParallelModule(
            module, registry, inner, self.context,
            asked=self.plan.options["plan"], among=self.placement.model,
        )  # fmt: skip


@final
class TensorParallelModule(ShardedModule):
    """DTensor's column- and row-parallel layers. Gradients are added up along the data axis at the
    end of each backward pass."""

    def __init__(
        self,
        module: nn.Module,
        registry: ModuleRegistry,
        inner: Forward | None,
        context: ShardContext,
        *,
        asked: object,
        among: Communicator | None,
    ) -> None:
        """asked: the plan. among: the ranks of one copy, whose inputs are compared at the first
        call; None where there is nothing to compare."""
        super().__init__(module, registry, inner, context)
        self._asked = asked
        self._sum = DataAxisSum(registry.communicator)
        self._own_columns: MutableMapping[nn.Module, str] = WeakIdKeyDictionary()
        self._pairs: dict[str, ref[nn.Module]] = {}
        self._to_compare = among

    def shard(self) -> None:
        whole = not any(isinstance(parameter, DTensor) for parameter in self.module.parameters())
        initializer = MetaInitializer(self.module) if whole and is_meta(self.module) else None
        self._parameters.cast(self.module)
        if whole:
            plan = plan_of(self.module, self._asked, self._mesh.size())
            self._own_columns.update(shard_layers(self.module, plan, self._mesh))
            paired = {*self._own_columns.values(), *plan.local}
            self._pairs.update((name, ref(self.module.get_submodule(name))) for name in paired)
            if initializer is not None:
                initializer.fill(self.module, self._device, self.registry.world)
        self._sum.watch(self.module.parameters())
        if self.registry.updates is not None:
            new = [p for p in self.module.parameters() if id(p) not in self.sharded]
            self.registry.updates.held.watch(new)
        self.sharded = {id(parameter): parameter for parameter in self.module.parameters()}

    def accumulate(self, *, fresh: bool, completes: bool) -> None:
        self._sum.accumulate(fresh=fresh, completes=completes)

    def run_submodule(
        self, part: nn.Module, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if part in self._own_columns:
            raise ConfigurationError(
                "A layer that gives each rank its own columns was called by itself. Received: a "
                f"call of {self._own_columns[part]} of {type(self.module).__name__}. Call the "
                "module that it is part of, or say 'replicate' for it in plan=."
            )
        return tree_map(to_whole, self.run(forward, args, kwargs))

    def train(
        self,
        forward: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        share: Share | None,
    ) -> Any:
        if peek_transform() is not None:
            raise Unsupported(
                "torch.func cannot look through a model that is cut by tensors. Received: a call "
                f"of {type(self.module).__name__} inside torch.func.vmap, grad or the like. Use "
                "'sharded' or 'mirrored'."
            )
        if self._to_compare is not None:
            check_same_inputs(self._to_compare, (args, kwargs))
            self._to_compare = None
        self._sum.refresh()
        try:
            output = super().train(forward, args, kwargs, share)
        except RuntimeError as error:
            self._check_pairs(error)
            raise
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                leaf.register_hook(_refuse_second_gradients)
        return output

    def _check_pairs(self, error: RuntimeError) -> None:
        """Name a layer that computes on each rank's own columns, or gives them, and has been
        replaced: the one in its place does neither."""
        there = dict(self.module.named_modules())
        replaced = [name for name, layer in self._pairs.items() if there.get(name) is not layer()]
        if replaced:
            raise ConfigurationError(
                "A layer was replaced whose columns each rank has a part of, and the layer beside "
                f"it goes on with parts. Received: another {', '.join(sorted(replaced))} in "
                f"{type(self.module).__name__}. Replace both, replace them before the first call "
                "of the model, or say 'replicate' for them in plan=."
            ) from error


def _one_by_one(optimizer: Optimizer, *_: Any) -> None:
    """Have groups of shards and of whole tensors stepped one by one: torch's forms that step all at
    once, which are its default on a GPU, take no mixture."""
    for group in optimizer.param_groups:
        if len({isinstance(parameter, DTensor) for parameter in group["params"]}) > 1:
            group.update({form: False for form in ("foreach", "fused") if form in group})


def _refuse_second_gradients(_: torch.Tensor) -> None:
    """Raise in a backward pass that is to be differentiated itself, where gradients are on: DTensor
    would leave out what passes between ranks."""
    if torch.is_grad_enabled():
        raise Unsupported(
            "A gradient of a gradient cannot be taken through a model that is cut by tensors. "
            "Received: a backward pass with create_graph=True. Use 'sharded' or 'mirrored'."
        )


def check_same_inputs(among: Communicator, inputs: Any) -> None:
    """Raise where a rank's inputs differ from those of the first rank of its copy."""
    said = among.all_gather_object([_fingerprint(x) for x in tree_leaves(inputs)])
    for rank, theirs in enumerate(said[1:], start=1):
        if theirs != said[0]:
            raise Desynchronized(
                "The ranks that hold the parts of one model must work on the same samples. "
                f"Received: inputs (shape, sum) {said[0]} on part 0, {theirs} on part {rank}. "
                "Give each the same batch: make the loader in the block, and seed what draws data."
            )


def _fingerprint(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return None
    total = x.detach().double().abs().sum() if not x.is_complex() else torch.tensor(0.0)
    return tuple(x.shape), float(total)


def shard_layers(module: nn.Module, plan: TensorPlan, mesh: DeviceMesh) -> dict[nn.Module, str]:
    """Cut the layers of a module by a plan. Return those that give each rank columns of its own,
    with their names."""
    own_columns: dict[nn.Module, str] = {}
    for name, cut in plan.cuts.items():
        layer = module.get_submodule(name)
        in_mode = any(f"{name}.".startswith(f"{owner}.") or not owner for owner in plan.modes)
        with mode_off_in(layer) if in_mode else nullcontext():
            if cut == "row":
                _shard_rows(layer, mesh, local=name in plan.local)
            else:
                _shard_columns(layer, name, mesh, plan.after.get(name, "whole"))
        if plan.after.get(name) == "local":
            own_columns[layer] = name
    module.register_load_state_dict_pre_hook(shard_loaded)
    for name in plan.modes:
        turn_on(module.get_submodule(name), mesh)
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoderLayer):
            private.unfused(part)
    return own_columns


def _shard_rows(layer: nn.Module, mesh: DeviceMesh, *, local: bool) -> None:
    """local: the input is this rank's own columns; any other is whole, or a shard."""

    def take(_: nn.Module, args: tuple[Any, ...]) -> Any:
        return tree_map(lambda x: x.to_dtensor() if isinstance(x, LocalShard) else x, args)

    layer.register_forward_pre_hook(take)  # before the layer is cut, so that it comes first
    style = RowwiseParallel(input_layouts=Shard(-1) if local else Replicate())
    parallelize_module(layer, mesh, style, src_data_rank=None)
    layer.register_forward_hook(mark_whole)


def _shard_columns(layer: nn.Module, name: str, mesh: DeviceMesh, after: After) -> None:
    whole = after == "whole" or isinstance(layer, nn.Embedding)
    style = ColwiseParallel(output_layouts=Replicate()) if whole else ColwiseParallel()
    parallelize_module(layer, mesh, style, src_data_rank=None)
    if whole:
        layer.register_forward_hook(mark_whole)
    else:

        def give(_: nn.Module, __: Any, output: torch.Tensor) -> Any:
            own = private.changeable(output)
            if after != "local":
                return LocalShard(own, own.dim() - 1, mesh)
            mark_columns(own, name)
            return own

        layer.register_forward_hook(give)


@final
class WholeTensorMode(TorchFunctionMode):
    """While it is on, ordinary tensors beside cut ones count as whole ones, alike on every rank."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self._mesh = mesh

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = (*args, *kwargs.values())
        if _holds(LocalShard, given):
            return compute(func, *args, **kwargs)
        if _holds(DTensor, given):  # a cut layer's parameter, which other lines read
            change = to_whole if func in _WHOLE_ONLY else self._as_dtensor
            args, kwargs = tree_map(change, (args, kwargs))
        return func(*args, **(kwargs or {}))

    def _as_dtensor(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, DTensor):
            return value
        return DTensor.from_local(value, self._mesh, [Replicate()], run_check=False)


_WHOLE_ONLY = {F.dropout, F.scaled_dot_product_attention}


def _holds(kind: type[Any], values: Iterable[Any]) -> bool:
    return any(
        isinstance(value, kind) or (isinstance(value, (tuple, list)) and _holds(kind, value))
        for value in values
    )


def turn_on(module: nn.Module, mesh: DeviceMesh) -> None:
    """Have the module's forward passes run in the mode. Its outputs are whole, ordinary tensors."""
    mode: Any = WholeTensorMode(mesh)
    module.register_forward_pre_hook(lambda *_: mode.__enter__() and None)
    module.register_forward_hook(lambda *_: mode.__exit__(None, None, None), always_call=True)
    module.register_forward_hook(lambda _, __, output: tree_map(to_whole, output))


@contextmanager
def mode_off_in(layer: nn.Module) -> Iterator[None]:
    """Have the mode be off inside a cut layer, which knows what to do, and reads many attributes
    of tensors on the way; and in the hooks that the layer is given inside here."""
    off: list[Any] = []

    def begin(*_: Any) -> None:
        off.append(private.functions_unseen())
        off[-1].__enter__()

    def end(*_: Any) -> None:
        off.pop().__exit__(None, None, None)

    layer.register_forward_pre_hook(begin)
    yield
    layer.register_forward_hook(end, always_call=True)


def mark_columns(output: torch.Tensor, layer: str) -> None:
    """Note that a tensor has this rank's columns of a layer's output."""
    if output.grad_fn is not None:
        note(output.grad_fn, _COLUMNS, layer)


def mark_whole(_: nn.Module, __: Any, output: Any) -> Any:
    """A forward hook: all ranks have what a layer gives, an ordinary tensor."""
    if isinstance(output, torch.Tensor) and output.grad_fn is not None:
        output = changeable(output)
        note(output.grad_fn, _COLUMNS, "")
    return output


def refusing_inner_losses(run: Callable[..., None]) -> Callable[..., None]:
    """`torch.autograd.backward` that raises `Unsupported` for a loss that is computed of what a cut
    layer gives inside its model: each rank has some of its columns, and would take its mean, or its
    largest, over those."""

    @wraps(run)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        for root in [tensors] if isinstance(tensors, torch.Tensor) else list(tensors):
            layer = _columns_below(root.grad_fn)
            if layer:
                raise Unsupported(
                    "A layer inside a model that is cut by tensors gives each rank some columns, "
                    "and the loss is computed of them. Received: a loss of what follows "
                    f"{layer!r} in its model. Return it from the model's forward and cut the "
                    "layer by plan={" + repr(layer) + ": 'replicate'}, or use 'sharded' or "
                    "'mirrored'."
                )
        run(tensors, *args, **kwargs)

    return backward


def _columns_below(start: Any) -> str:
    """The layer whose columns a loss comes to by another way than its model's output."""
    left, known = [start], {start}
    for _ in range(_MOST):
        if not left:
            return ""
        node = left.pop()
        if node is None or call_at(node) is not None:
            continue
        layer = node.metadata.get(_COLUMNS)
        if layer:
            return str(layer)
        if layer is not None:
            continue
        for after, _ in node.next_functions:
            if after not in known:
                known.add(after)
                left.append(after)
    return ""
