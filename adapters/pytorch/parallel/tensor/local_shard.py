"""A rank's shard of a tensor between a column-cut layer and a row-cut one, in place of the whole.

It answers for the whole: its shape is the whole's, and what is computed with it is what would be
of the whole. Operations that each rank can do with its own shard run on ordinary tensors; for any
other the shards are gathered first, which is right and slower.

DTensor, which `parallelize_module` leaves there, would do for most of this. But it refuses ordinary
tensors beside it (masks, scales, biases), knows no attention on a CPU, draws other dropout masks
than one device would, and takes about 75 us more for each operation of an attention on a CPU, where
this takes 20. Where every operation up to the row-cut layer goes element by element,
`parallelize_module` with local outputs serves, and no shard of this kind is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from math import prod
from typing import Any, final

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional as F

from dream._errors import Unsupported
from dream.adapters.pytorch.private import changeable, tree_map

Rule = Callable[..., Any]


@final
class LocalShard:
    """This rank's part of a tensor that is cut over a mesh.

    local: what this rank has. axis: the dim that is cut, into equal parts; mesh: over whom.
    """

    __slots__ = ("axis", "local", "mesh")

    def __init__(self, local: torch.Tensor, axis: int, mesh: DeviceMesh) -> None:
        self.local, self.axis, self.mesh = local, axis, mesh

    @property
    def parts(self) -> int:
        return self.mesh.size()

    @property
    def shape(self) -> torch.Size:
        sizes = [*self.local.shape]
        sizes[self.axis] *= self.parts
        return torch.Size(sizes)

    def with_local(self, local: torch.Tensor, axis: int | None = None) -> LocalShard:
        return LocalShard(local, self.axis if axis is None else axis, self.mesh)

    def to_dtensor(self) -> DTensor:
        return DTensor.from_local(self.local, self.mesh, [Shard(self.axis)], run_check=False)

    def share_of(self, whole: torch.Tensor, dim: int | None) -> torch.Tensor:
        """Return this rank's part of a whole tensor that the shard is computed with; all of it
        where no dim is cut. Its gradient is whole again, on every rank."""
        if not whole.requires_grad:
            return (
                whole if dim is None else whole.chunk(self.parts, dim)[self.mesh.get_local_rank()]
            )
        known = DTensor.from_local(whole, self.mesh, [Replicate()], run_check=False)
        if dim is None:
            return known.to_local(grad_placements=[Partial()])
        return known.redistribute(placements=[Shard(dim)]).to_local()

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.local.dim()

    def __getattr__(self, name: str) -> Any:
        """Methods and attributes of tensors."""
        if name in _AS_LOCAL:
            return getattr(self.local, name)
        if name == "mT":
            return self.transpose(-2, -1)
        found = getattr(torch.Tensor, name)
        return partial(compute, found, self) if callable(found) else getattr(to_whole(self), name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return compute(func, *args, **(kwargs or {}))

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(compute(torch.Tensor.unbind, self))

    def __bool__(self) -> bool:
        return bool(to_whole(self))


_OF_ITSELF = {"register_hook", "retain_grad", "__setitem__"}
_AS_LOCAL = {"ndim", "dtype", "device", "requires_grad", "is_cuda"}


def compute(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function of tensors, some of which are shards. Refuse what would change a gathered
    tensor, and not the shard."""
    rule = _RULES.get(func)
    fits = rule is not None and (args or "query" in kwargs)  # attention's are often named
    result = rule(func, *args, **kwargs) if rule is not None and fits else NotImplemented
    if result is not NotImplemented:
        return result
    name = getattr(func, "__name__", "")
    if name in _OF_ITSELF or (name.endswith("_") and not name.endswith("__")):
        raise Unsupported(
            "A tensor of which each rank has a piece cannot be changed in place by this. Received: "
            f"{name} in a layer that split='tensor' cuts. Compute a new tensor instead, or say "
            "'replicate' for the layer in plan=."
        )
    args, kwargs = tree_map(to_whole, (args, kwargs))
    return func(*args, **kwargs)


def to_whole(value: Any) -> Any:
    """Put a cut tensor together, in a way that gradients pass; anything else is left as it is."""
    value = value.to_dtensor() if isinstance(value, LocalShard) else value
    if not isinstance(value, DTensor):
        return value
    whole = value.redistribute(placements=[Replicate()] * value.device_mesh.ndim)
    return changeable(whole.to_local())


def _operator(name: str) -> Any:
    found = getattr(torch.Tensor, name)
    return lambda self, *args: compute(found, self, *args)


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "neg",
              "matmul", "rmatmul", "getitem", "setitem", "eq", "ne", "lt", "le", "gt",
              "ge"):  # fmt: skip
    setattr(LocalShard, f"__{_name}__", _operator(f"__{_name}__"))
LocalShard.__hash__ = object.__hash__  # type: ignore[method-assign]


# Rules: the operations that each rank does with its own shard, and where the cut dim goes. A rule
# is given the function and its arguments, and gives `NotImplemented` where it does not know.


def _resized(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Of views. The shard is a run of elements within each index of the dims before the cut one;
    it stays one where a dim begins at the same place, and has equal parts."""
    if any(isinstance(arg, (torch.dtype, torch.Tensor, LocalShard)) for arg in args):
        return NotImplemented
    args = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
    sizes = _sizes(func, x.shape, *args, **kwargs)
    before = prod(x.shape[: x.axis])
    for axis, size in enumerate(sizes):
        if x.local.numel() and prod(sizes[:axis]) == before and size % x.parts == 0:
            local = [*sizes[:axis], size // x.parts, *sizes[axis + 1 :]]
            return x.with_local(x.local.reshape(local), axis)
    return NotImplemented


@lru_cache(1024)
def _sizes(func: Any, shape: torch.Size, *args: Any, **kwargs: Any) -> torch.Size:
    """Return what a view makes of a shape, looked up since a step asks the same many times."""
    sizes: torch.Size = func(torch.empty(shape, device="meta"), *args, **kwargs).shape
    return sizes


def _swapped(func: Any, x: Any, dim0: int, dim1: int) -> Any:
    a, b = dim0 % x.dim(), dim1 % x.dim()
    axis = {a: b, b: a}.get(x.axis, x.axis)
    return x.with_local(func(x.local, a, b), axis)


def _permuted(func: Any, x: Any, *dims: Any, **kwargs: Any) -> Any:
    if kwargs:
        return NotImplemented
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = [dim % x.dim() for dim in order]
    return x.with_local(func(x.local, order), order.index(x.axis))


def _each(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Element by element, whatever the other arguments say."""
    if not isinstance(x, LocalShard) or any(
        isinstance(a, (LocalShard, torch.Tensor)) for a in args
    ):
        return NotImplemented
    return x.with_local(func(x.local, *args, **kwargs))


def _retyped(_: Any, x: Any, other: Any) -> Any:
    return x.with_local(x.local.to(other.dtype)) if isinstance(x, LocalShard) else NotImplemented


def _pairwise(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Element by element of several tensors, which may be broadcast. In place, of a shard only."""
    shards = [arg for arg in args if isinstance(arg, LocalShard)]
    if kwargs or not shards or not isinstance(args[0], (LocalShard, torch.Tensor)):
        return NotImplemented
    first, *others = shards
    if func in _IN_PLACE and args[0] is not first:
        return NotImplemented
    if any(o.shape != first.shape or o.axis != first.axis for o in others):
        return NotImplemented
    own = [_beside(first, arg) for arg in args]
    if any(arg is NotImplemented for arg in own):
        return NotImplemented
    return first.with_local(func(*own))


def _beside(shard: LocalShard, value: Any) -> Any:
    """Return what of an argument belongs to a shard, dims counted from the end."""
    if isinstance(value, LocalShard):
        return value.local
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(value, DTensor) or value.dim() > shard.dim():
        return NotImplemented
    dim = shard.axis - shard.dim() + value.dim()
    return shard.share_of(value, None if dim < 0 or value.shape[dim] == 1 else dim)


def _product(func: Any, a: Any, b: Any, **kwargs: Any) -> Any:
    """Of matrices in the last two dims; the cut one is before them."""
    if kwargs or not isinstance(a, LocalShard) or not _heads_alike(a, b):
        return NotImplemented
    return a.with_local(func(a.local, b.local))


def _einsum(func: Any, equation: Any, *operands: Any) -> Any:
    """Where one letter is cut in every shard, and stays."""
    terms, arrow, output = str(equation).replace(" ", "").partition("->")
    named = [*zip(terms.split(","), operands, strict=False)]
    shards = [(term, x) for term, x in named if isinstance(x, LocalShard)]
    if not arrow or "." in terms or len(named) != len(operands) or not shards:
        return NotImplemented
    letters, first = {term[x.axis] for term, x in shards}, shards[0][1]
    letter = letters.pop()
    plain = all(isinstance(x, LocalShard) or not isinstance(x, DTensor) for x in operands)
    if letters or letter not in output or not plain or any(t.count(letter) > 1 for t, _ in named):
        return NotImplemented
    own = [
        x.local if isinstance(x, LocalShard) else
        first.share_of(x, term.index(letter) if letter in term else None)
        for term, x in named
    ]  # fmt: skip
    return first.with_local(func(equation, *own), output.index(letter))


def _normalised(func: Any, x: Any, dim: int | None = None, *args: Any, **kwargs: Any) -> Any:
    if dim is None or not isinstance(x, LocalShard) or dim % x.dim() == x.axis:
        return NotImplemented
    return x.with_local(func(x.local, dim, *args, **kwargs))


def _dropped(
    func: Any, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """By the mask that one device would draw."""
    del inplace
    if not training or p == 0.0:
        return x
    mask = func(torch.ones(x.shape, dtype=x.dtype, device=x.device), p)
    return x.with_local(x.local * x.share_of(mask, x.axis))


def _attention(
    func: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Each rank attends with its own heads, or its own samples."""
    given = (query, key, value)
    if dropout_p or not all(isinstance(x, LocalShard) and _heads_alike(query, x) for x in given):
        return NotImplemented
    mask = None if attn_mask is None else _beside(query, attn_mask)
    if mask is NotImplemented:
        return NotImplemented
    q, k, v = (x.local for x in given)
    return query.with_local(func(q, k, v, attn_mask=mask, is_causal=is_causal, **options))


def _heads_alike(a: Any, b: Any) -> bool:
    both = isinstance(a, LocalShard) and isinstance(b, LocalShard)
    same = both and a.dim() == b.dim() and a.shape[:-2] == b.shape[:-2]
    return same and a.axis == b.axis and a.axis < a.dim() - 2


_NAMED: dict[Rule, tuple[str, ...]] = {
    _resized: ("view", "reshape", "flatten", "unflatten", "unsqueeze"),
    _swapped: ("transpose", "swapaxes"),
    _permuted: ("permute",),
    _each: ("relu", "gelu", "silu", "tanh", "sigmoid", "exp", "square", "neg", "__neg__", "float",
            "contiguous", "leaky_relu", "elu", "softplus", "to", "detach", "clone", "relu_",
            "relu6", "selu", "celu", "mish", "softsign", "hardtanh", "hardswish", "hardsigmoid",
            "abs", "log", "sqrt", "rsqrt", "clamp"),
    _retyped: ("type_as",),
    _pairwise: ("add", "sub", "mul", "div", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__",
                "__rmul__", "__truediv__", "__rtruediv__", "__pow__", "pow", "masked_fill", "add_",
                "sub_", "mul_", "div_", "masked_fill_", "where", "__eq__", "__ne__", "__lt__",
                "__le__", "__gt__", "__ge__", "eq", "ne", "lt", "le", "gt", "ge"),
    _product: ("matmul", "__matmul__", "bmm"),
    _einsum: ("einsum",),
    _normalised: ("softmax", "log_softmax"),
    _dropped: ("dropout",),
    _attention: ("scaled_dot_product_attention",),
}  # fmt: skip
_RULES: dict[Any, Rule] = {
    getattr(owner, name): rule
    for rule, names in _NAMED.items()
    for name in names
    for owner in (torch, torch.Tensor, F)
    if callable(getattr(owner, name, None))
}
_IN_PLACE = {getattr(torch.Tensor, name) for name in ("add_", "sub_", "mul_", "div_",
                                                      "masked_fill_")}  # fmt: skip
