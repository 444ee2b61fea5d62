"""Nodes of the autograd graph: which add up, which pass a gradient on linearly, which reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

from dream.adapters.pytorch.private import is_number, saved

_FEW = 8
"""Nodes that are looked at below a sum, for what it is weighed by."""
LEAF = "torch::autograd::AccumulateGrad"
ADD = {"AddBackward0", "SubBackward0"}
STACK = {"StackBackward0", "CatBackward0"}
PASS = {
    "NegBackward0", "ToCopyBackward0", "CloneBackward0", "AliasBackward0", "ViewBackward0",
    "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1",
    "SqueezeBackward2", "UnsqueezeBackward0", "AddBackward1", "RsubBackward1", "SubBackward1",
    "AddBackward0", "SubBackward0", "PermuteBackward0", "TransposeBackward0", "TBackward0",
    "ExpandBackward0", "AsStridedBackward0", "ContiguousBackward0",
}  # fmt: skip
"""What a gradient passes through unchanged but for its sign, dtype or shape."""
SELECT = {
    "IndexBackward0", "MaskedSelectBackward0", "IndexSelectBackward0", "SliceBackward0",
    "SelectBackward0", "MaskedFillBackward0", "WhereBackward0", "MaskedScatterBackward0",
    "UnbindBackward0", "SplitBackward0", "NarrowBackward0", "GatherBackward0",
}  # fmt: skip
"""What takes some of the elements."""
RAGGED = {"IndexBackward0", "MaskedSelectBackward0", "IndexSelectBackward0"}
"""What takes as many as the data say."""
SUMS, MEANS = {"SumBackward0", "SumBackward1"}, {"MeanBackward0", "MeanBackward1"}
SCALE = {"MulBackward0", "MulBackward1", "DivBackward0", "DivBackward1"}
LINEAR = PASS | {"MulBackward0", "MulBackward1", "DivBackward1"}
"""What losses in one tensor may go through to their sum, each by itself."""
PRODUCTS = {
    "MmBackward0", "AddmmBackward0", "BmmBackward0", "BaddbmmBackward0", "AddbmmBackward0",
    "MvBackward0", "AddmvBackward0", "DotBackward0", "ConvolutionBackward0", "MulBackward0",
}  # fmt: skip
LAYERS = PRODUCTS - {"MulBackward0", "DotBackward0", "MvBackward0"} | {
    "EmbeddingBackward0", "NativeLayerNormBackward0",
}  # fmt: skip
"""Where a model that returns its loss has computed what its loss is made of."""
OF_PARAMETERS = {
    LEAF, *ADD, *STACK, *PASS, *SUMS, *MEANS, *SCALE, "PowBackward0", "AbsBackward0",
    "SqrtBackward0", "NormBackward0", "NormBackward1", "LinalgVectorNormBackward0",
    "ExpBackward0", "LogBackward0", "MmBackward0", "BmmBackward0", "MaxBackward1",
    "SoftplusBackward0", "SigmoidBackward0", "TanhBackward0", "SelectBackward0", "SliceBackward0",
    "TriuBackward0", "TrilBackward0", "DiagonalBackward0", "RsqrtBackward0", "TraceBackward0",
    "ReluBackward0", "ClampMinBackward0", "ClampBackward1", "ReciprocalBackward0", "PowBackward1",
    "DotBackward0", "LinalgMatrixExpBackward0", "SoftmaxBackward0", "LogSoftmaxBackward0",
    "MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "Log1PBackward0",
    "Expm1Backward0", "Log2Backward0", "CoshBackward0", "SinhBackward0", "ErfBackward0",
    "LgammaBackward0", "SinBackward0", "CosBackward0", "LogSigmoidBackward0", "GeluBackward0",
    "SiluBackward0", "EluBackward0", "LeakyReluBackward0", "LinalgSvdBackward0",
    "LinalgEighBackward0", "LinalgInvExBackward0", "LinalgDetBackward0", "LinalgSlogdetBackward0",
    "LinalgCholeskyExBackward0", "LogsumexpBackward0", "MaxBackward0", "MinBackward0",
    "MinBackward1", "AmaxBackward0", "AminBackward0", "CumsumBackward0", "ProdBackward0",
    "StdBackward0", "VarBackward0", "MaximumBackward0", "MinimumBackward0", "WhereBackward0",
    "MaskedFillBackward0", "UnbindBackward0", "SplitBackward0", "FlipBackward0", "RollBackward0",
    "CdistBackward0", "PdistBackward0", "BinaryCrossEntropyBackward0",
    "BinaryCrossEntropyWithLogitsBackward0", "SoftMarginLossBackward0", "IndexBackward0",
    "MaskedSelectBackward0",
}  # fmt: skip
"""What penalties on parameters are made of, and what is `of_operands`: anything else has data in
it."""
_BESIDE = {
    "index", "indices", "mask", "condition", "target", "weight", "buffer", "running_mean",
    "running_var", "batch_sizes", "offset2bag", "targets",
}  # fmt: skip
"""What a node may keep that came in beside its operands."""
BROADCAST = {
    "MulBackward0", "DivBackward0", *ADD, "ExpandBackward0", "WhereBackward0",
    "MaskedFillBackward0", "MaximumBackward0", "MinimumBackward0", "RepeatBackward0",
}  # fmt: skip
"""What may have more rows than what it is made of: those of data."""

SAMPLEWISE = {
    "LogSoftmaxBackward0", "SoftmaxBackward0", "SigmoidBackward0", "LogSigmoidBackward0",
    "TanhBackward0", "ReluBackward0", "ExpBackward0", "LogBackward0",
}  # fmt: skip
"""What stands between an output and a loss and makes of each sample something by itself, or of each
element; along one dim, which must not be the samples'."""
_OVER_DIMS = {
    "SumBackward1", "MeanBackward1", "LogsumexpBackward0", "MaxBackward0", "MinBackward0",
    "AmaxBackward0", "AminBackward0", "StdBackward0", "VarBackward0", "ProdBackward1",
    "NormBackward1", "LinalgVectorNormBackward0", "CumsumBackward0", "CumprodBackward0",
    "LogcumsumexpBackward0", "SoftmaxBackward0", "LogSoftmaxBackward0", "SortBackward0",
    "VarMeanBackward0", "StdMeanBackward0", "RollBackward0", "FlipBackward0", "TopkBackward0",
    "KthvalueBackward0", "MedianBackward1", "NanmedianBackward1", "ModeBackward0",
    "NansumBackward0", "AminmaxBackward0",
}  # fmt: skip
_ORDERS = {
    "CumsumBackward0", "SortBackward0", "TopkBackward0", "KthvalueBackward0", "MedianBackward1",
    "NanmedianBackward1", "ModeBackward0",
}  # fmt: skip
"""What of samples in a row makes samples in a row, or picks some: not only a reduction to one."""
_OVER_ALL = {
    "SumBackward0", "MeanBackward0", "MaxBackward1", "MinBackward1", "ProdBackward0",
    "MedianBackward0",
}  # fmt: skip
DISTANCES = {"CdistBackward0", "EuclideanDistBackward0"}
_COUPLES = {*DISTANCES, "PdistBackward0"}


@dataclass(frozen=True, slots=True)
class Reduction:
    """A sum or a mean. sizes: of its input. dims: that it removes."""

    mean: bool
    sizes: tuple[int, ...]
    dims: tuple[int, ...]

    @property
    def numel(self) -> int:
        """How many elements make one of the output."""
        return prod(self.sizes[dim] for dim in self.dims)


def operands(node: Any) -> list[Any]:
    """The nodes that a node's gradient goes to."""
    return [after for after, _ in node.next_functions if after is not None]


def reduction_at(node: Any, name: str) -> Reduction | None:
    """What a node reduces; None where it does not, or not by a sum or mean."""
    if name in SUMS or name in MEANS:
        sizes = tuple(saved(node, "self_sym_sizes"))
        return Reduction(name in MEANS, sizes, _dims(saved(node, "dim"), len(sizes)))
    how = saved(node, "reduction")
    if how in (1, 2) and isinstance(given := saved(node, "self"), torch.Tensor):
        sizes = tuple(given.shape)
        return Reduction(how == 1, sizes, tuple(range(len(sizes))))
    return None


def weight_at(node: Any, name: str) -> torch.Tensor | None:
    """What a mean of classes' losses divides by: what is not ignored, times its class's weight."""
    if name.startswith("NllLoss") and saved(node, "reduction") == 1:
        total: torch.Tensor = saved(node, "total_weight")
        return total
    return None


def smoothed_at(node: Any) -> bool:
    """Whether this adds up the two parts of a cross entropy with smoothed labels: the mean of the
    classes' losses, and of all classes' a sum over that mean's divisor."""
    after = operands(node)
    if node.name() != "AddBackward0" or any(each.name() != "MulBackward1" for each in after):
        return False
    ends = [_under(each, PASS | {"MulBackward1"}) for each in after]
    if len(ends) != 2 or weight_at(ends[0], ends[0].name()) is None:
        return False
    if ends[1].name() != "DivBackward0" or len(operands(ends[1])) != 1:
        return False
    over_classes = {"SumBackward0", "SumBackward1", "MaskedFillBackward0", "MulBackward0"} | PASS
    bottoms = [_under(ends[0], PASS | {ends[0].name()}), _under(ends[1], {"DivBackward0"})]
    return bottoms[0] is _under(bottoms[1], over_classes) and bottoms[0].name().startswith("LogS")


def hands_on(node: Any, name: str) -> bool:
    """Whether what a number is made of, by one operand, is that number but for its scale: also of a
    quotient that is 0 where its divisor is, as Keras's losses are."""
    if name == "WhereBackward0":
        condition = saved(node, "condition")
        return isinstance(condition, torch.Tensor) and condition.numel() == 1
    return name in PASS or name in SCALE


def vanishes(node: Any) -> bool:
    """Whether what a node makes is something times 0, and so has no gradient."""
    for _ in range(_FEW):
        if node is None:
            return False
        name = node.name()
        if name == "MulBackward0":
            by = [value for side in ("self", "other") if (value := saved(node, side)) is not None]
            if any(is_number(each) and not float(each) for each in by):
                return True
        after = operands(node)
        if name not in PASS | SUMS | MEANS | SCALE or len(after) != 1:
            return False
        node = after[0]
    return False


def _under(node: Any, passed: set[str]) -> Any:
    """The first node down, from one operand to the next, that is none of these."""
    while node.name() in passed and len(operands(node)) == 1:
        node = operands(node)[0]
    return node


def divisor_at(node: Any, name: str) -> torch.Tensor | float | None:
    """The constant that a node divides its one operand by: a number, or a tensor that the script
    computed; None where there is none, or one for each element."""
    if name in ("DivBackward1", "MulBackward1"):
        number = float(saved(node, "other"))
        return number if name[0] == "D" else (1.0 / number if number else None)
    if name not in SCALE or len(operands(node)) != 1:
        return None
    other = saved(node, "other" if node.next_functions[0][0] is not None else "self")
    if not isinstance(other, torch.Tensor) or other.numel() != 1:
        return None
    if is_number(other):
        number = float(other)
        return number if name[0] == "D" else (1.0 / number if number else None)
    return other if name[0] == "D" else None


def weights_below(node: Any, *, of_one: bool = False) -> list[tuple[float, bool]]:
    """The sums of what a number's elements are multiplied by, or chosen by, where it is a sum; of a
    sum of classes' losses, what is not ignored, times its class's weight. Each with whether it is
    the script's own. of_one: a share is of one row, so that its mask may be of one element."""
    found: list[tuple[float, bool]] = []
    for _ in range(_FEW):
        name, after = node.name(), operands(node)
        if name.startswith("NllLoss"):
            total, target = float(saved(node, "total_weight")), saved(node, "target")
            return [*found, (total, total != target.numel())]  # some are ignored, or weighed
        if len(after) != 1:
            break
        mask = None
        if name == "MulBackward0":
            mask = saved(node, "other" if node.next_functions[0][0] is not None else "self")
        elif name == "WhereBackward0":
            mask = saved(node, "condition")
        elif name == "MaskedFillBackward0":
            mask = saved(node, "mask").logical_not()
        if isinstance(mask, torch.Tensor) and (mask.numel() > 1 or (of_one and mask.dim())):
            found.append((float(mask.sum()), True))
        elif name not in PASS | SELECT | SUMS | SCALE:
            break
        node = after[0]
    return found


def of_operands(node: Any, name: str) -> bool:
    """Whether a node of torch's own is computed from what its gradient goes to alone."""
    if not name[-1].isdigit() or "BackwardBackward" in name:  # a gradient, of what is not seen
        return False
    if any(after is None for after, _ in node.next_functions):
        return False
    kind: Any = type(node)
    return name in _ORDERS or _keeps_operands(kind)


@cache
def _keeps_operands(kind: Any) -> bool:
    kept = {each[len("_saved_") :] for each in dir(kind) if each.startswith("_saved_")}
    return not kept & _BESIDE


def may_couple(name: str) -> bool:
    """Whether a node of this name may make samples depend on each other."""
    return name in _OVER_DIMS or name in _OVER_ALL or name in _COUPLES or is_loss(name)


def is_loss(name: str) -> bool:
    return "Loss" in name or name.startswith("BinaryCrossEntropy")


def couples(node: Any, name: str, rows: int) -> bool:
    """Whether what a node makes of one sample depends on the others, as far as sizes tell. rows:
    samples that there are."""
    if name in _COUPLES or name in _OVER_ALL:
        return True
    if is_loss(name):  # a sum or a mean of losses, of which something else is made
        return saved(node, "reduction") in (1, 2)
    if name not in _OVER_DIMS or not rows:
        return False
    sizes = _worked_on(node)
    if not sizes or len(sizes) < 2:
        return bool(sizes) and (sizes[0] == rows or name in _ORDERS)
    return 0 in _along(node, len(sizes)) and sizes[0] % rows == 0


def removed_by(node: Any, name: str, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The dims that a node works along, and may remove; None where it works on each element.
    sizes: of what it worked on."""
    if name not in _OVER_DIMS:
        return None
    return _along(node, len(sizes))


def _along(node: Any, many: int) -> tuple[int, ...]:
    dims = saved(node, "dim")
    return _dims(saved(node, "dims") if dims is None else dims, many)


def _worked_on(node: Any) -> Sequence[int]:
    whole = saved(node, "self")
    given = saved(node, "result") if whole is None else whole
    return tuple(given.shape) if isinstance(given, torch.Tensor) else saved(node, "self_sym_sizes")


def _dims(given: Any, many: int) -> tuple[int, ...]:
    """Dims as torch keeps them: one or several, negative ones as unsigned numbers, none for all."""
    if given is None:
        return tuple(range(many))
    listed = [given] if isinstance(given, int) else list(given)
    if not listed:
        return tuple(range(many))
    return tuple(dim % many if many else dim for dim in map(signed, listed))


def signed(dim: int) -> int:
    """A dim or an index as torch keeps it: a negative one as an unsigned number."""
    return dim - (1 << 64) if dim >= 1 << 63 else dim
