"""Numbers that parameters or their gradients alone give: where every rank has the same of these, it
has the same number. That is tried, as a number does not tell what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import torch

from dream.adapters.pytorch.data.replicated_rows import memory_of
from dream.adapters.pytorch.private import saved, shape_of, version_of
from dream.adapters.pytorch.update.stamps import Stamps

Runs = Callable[[], Iterable[Sequence[torch.Tensor]]]
_ORDERS = (2.0, 1.0, float("inf"))
_CLOSE = 1e-5
_SURE = 32
"""Reads that are all tried; of those after them ever fewer."""
_NODES = 10_000
_LEAF = "torch::autograd::AccumulateGrad"


@final
class SameNumbers:
    """Knows numbers that every rank has alike, and so are no rank's own.

    runs: parameters, a model's each, that every rank has alike, with their gradients.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._reads = self._next = 0
        self._known: tuple[Stamps, list[torch.Tensor]] = (Stamps(), [])

    def wrap_clip(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """`clip_grad_norm_`, whose norm is that of gradients which are others afterwards."""

        def wrapped(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            one = isinstance(parameters, torch.Tensor)
            listed = [parameters] if one else list(parameters)
            norm = clip(listed, *args, **kwargs)
            same = {id(p) for run in self._runs() for p in run}
            if type(norm) is torch.Tensor and all(id(p) in same for p in listed):
                mark(norm)
            return norm

        return wrapped

    def gives(self, x: torch.Tensor) -> bool:
        """Whether parameters or gradients give this once more, or it is of their memory, or of all
        ranks' shards. After many that did, one that is not tried is taken for such, too."""
        if _is_of_all(x):
            return True
        self._reads += 1
        if getattr(x, "_dream_same", None) == version_of(x) or self._reads < self._next:
            return True
        found = self._tried(x)
        if found and self._reads > _SURE:
            self._next = self._reads + self._reads // 3
        return found

    def _tried(self, x: torch.Tensor) -> bool:
        if type(x) not in (torch.Tensor, torch.nn.Parameter) or not x.is_floating_point():
            return False
        runs = [[*run] for run in self._runs()]
        held = [each for run in runs for p in run for each in (p, p.grad) if each is not None]
        if not held:
            return False
        if x.numel() and memory_of(x) in {memory_of(each) for each in held}:
            return True
        if x.dim():
            return False
        if x.grad_fn is not None:
            again = _again(x, {id(p) for run in runs for p in run})
            return again is not None and again.shape == x.shape and _close(again, x.detach())
        return self._is_of(x, runs)

    @torch.no_grad()
    def _is_of(self, x: torch.Tensor, runs: Sequence[Sequence[torch.Tensor]]) -> bool:
        """Whether a number is a norm, a sum or a mean of a tensor, or a norm of a run. A whole
        number may be anything's: all answers right, and a layer's weights before training."""
        if not x.isfinite() or x == x.round():
            return False
        gradients = [[p.grad for p in run if p.grad is not None] for run in runs]
        together = [each for run in gradients for each in run]
        listed = [each for run in (*runs, together) for each in run]
        if not self._known[0].are_of(listed):
            kept = [[each.detach() for each in run if not each.is_sparse]
                    for run in (*gradients, together, *runs)]  # fmt: skip
            self._known = Stamps(listed), [number for run in kept for number in _numbers_of(run)]
        return any(_close(number, x) for number in self._known[1])


def _is_of_all(tensor: torch.Tensor) -> bool:
    """Tell whether this is a DTensor of every rank of the job: what they make of it is one."""
    mesh: Any = getattr(tensor, "device_mesh", None)
    return mesh is not None and mesh.size() == torch.distributed.get_world_size()


def mark(x: torch.Tensor) -> None:
    """Have a number be known to be the same on every rank, until it is written to."""
    x._dream_same = version_of(x)  # type: ignore[attr-defined]


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.isclose(a.double(), b.double().to(a.device), _CLOSE, 0.0).any())


def _numbers_of(run: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield tensors of numbers that a script may read of a run."""
    run = [each for each in run if each.numel() and each.is_floating_point()]
    if not run:
        return
    device = run[0].device
    sizes = torch.tensor([each.numel() for each in run], device=device)
    for order in _ORDERS:
        each = torch.stack([torch.linalg.vector_norm(g, order).to(device) for g in run])
        total = torch.linalg.vector_norm(each, order)
        yield torch.cat([each, each**2, each / sizes, total[None], total[None] ** 2])
    sums = torch.stack([g.sum().to(device) for g in run])
    yield torch.cat([sums, sums / sizes, sums.sum()[None]])


_GIVES: Mapping[str, Callable[..., torch.Tensor]] = {
    "ToCopyBackward0": lambda _, x: x,
    "SumBackward0": lambda _, x: x.sum(),
    "MeanBackward0": lambda _, x: x.mean(),
    "AbsBackward0": lambda _, x: x.abs(),
    "SqrtBackward0": lambda _, x: x.sqrt(),
    "PowBackward0": lambda node, x: x ** saved(node, "exponent"),
    "AddBackward0": lambda node, x, y=0: x + saved(node, "alpha") * y,
    "MulBackward0": lambda _, x, y: x * y,
    "LinalgVectorNormBackward0": lambda node, x: torch.linalg.vector_norm(x, saved(node, "ord")),
    "StackBackward0": lambda _, *each: torch.stack(each),
    "CatBackward0": lambda _, *each: torch.cat(each),
    "ViewBackward0": lambda node, x: x.reshape(shape_of(node)),
}
"""What a node has made of what it got, of all dims."""


@torch.no_grad()
def _again(x: torch.Tensor, same: set[int]) -> torch.Tensor | None:
    """Make a number again, of parameters alone; None where anything else has come into it. A number
    of Python's is not told from a tensor, so what is added is taken for 0, as `sum` begins with."""
    nodes: list[tuple[Any, int]] = []
    left: list[Any] = [x.grad_fn]
    while left and len(nodes) < _NODES:
        node = left.pop()
        below = [each for each, _ in node.next_functions]
        named = node.name()
        leaf = named == _LEAF and id(node.variable) in same
        if not leaf and (named not in _GIVES or (None in below and named != "AddBackward0")):
            return None
        below = [each for each in below if each is not None]
        nodes.append((node, len(below)))
        left += below
    made: list[torch.Tensor] = []
    with suppress(RuntimeError):  # of other sizes, where a sum is one of some dims
        for node, many in reversed(nodes):
            if node.name() == _LEAF:
                made.append(node.variable.detach().to(x.dtype))
                continue
            of = made[len(made) - many :]
            made[len(made) - many :] = [_GIVES[node.name()](node, *of)]
        return made[0] if not left else None
    return None
