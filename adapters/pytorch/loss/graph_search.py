"""What lies below a node of a loss's graph: outputs and data, and the modules that a backward pass
comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from dream.adapters.pytorch.loss import graph
from dream.adapters.pytorch.loss.calls import Bearer, TrainingCall, call_at
from dream.adapters.pytorch.loss.samples.row_dims import (
    is_beside_rows,
    is_of_layer,
    is_within_samples,
)
from dream.adapters.pytorch.private import saved, shape_of

FAR, NEAR = 2048, 48
"""Nodes that are looked at between a loss and the outputs it comes from; and within a model that
returns its loss."""
_ALL = 100_000
"""Nodes that are looked at on the way to modules."""


@final
class Reached:
    """What lies below a node: the calls whose outputs are reached, and whether it is of parameters
    alone."""

    __slots__ = ("calls", "couples", "data", "marked", "ragged")

    def __init__(self) -> None:
        self.calls: list[TrainingCall] = []
        self.marked: list[Any] = []
        self.data = self.ragged = False
        self.couples = ""


@final
class GraphSearch:
    """Looks below the nodes of a loss's graph.

    armed: the calls since the last backward, whose parameters are known for such.
    """

    def __init__(self, armed: list[TrainingCall]) -> None:
        self._armed = armed
        bare = (call for call in armed if call.bearer is not None and call.bearer.alone)
        self._only_rows = any(call.share is not None and call.share.count == 1 for call in bare)
        """Whether parameters are trained by themselves: what they are multiplied by is a row."""

    def below(
        self, start: Any, call: TrainingCall | None, most: int, skip: set[Any] | None = None
    ) -> Reached:
        """Look below a node, as far as outputs of calls. call: whose inside this is."""
        seen, known = Reached(), {start}
        left = [start]
        reduced: list[tuple[Any, str]] = []
        for _ in range(most):
            if not left:
                break
            node = left.pop()
            name = node.name()
            if call is None and (found := call_at(node)) is not None:
                seen.marked.append(node)
                if found not in seen.calls:
                    seen.calls.append(found)
                continue
            after = [each for each, _ in node.next_functions]
            seen.data = seen.data or self._takes_data(node, name)
            if name == graph.LEAF and not self._is_trained(node.variable):
                seen.data = True
            seen.ragged |= name in graph.RAGGED
            coupling = graph.may_couple(name) and (skip is None or node not in skip)
            if coupling or (name == "MmBackward0" and None not in after):
                reduced.append((node, name))
            for each in after:
                if each is not None and each not in known:
                    known.add(each)
                    left.append(each)
        else:
            seen.data = True
        if reduced and call is None and seen.calls and skip is not None:
            seen.couples = self._coupling(reduced, seen.calls)
        return seen

    def mixes(self, start: Any, call: TrainingCall | None, skip: set[Any]) -> str:
        """The operation that makes samples depend on each other in a number that was made inside a
        model, as a load of experts, on the way down to layers; nothing where none does. call: whose
        inside this is, if it is known. skip: what reduces the number itself."""
        left, known = [start], {start}
        for _ in range(NEAR):
            if not left:
                break
            node = left.pop()
            name: str = node.name()
            after = graph.operands(node)
            if name in graph.LAYERS or not after:
                continue
            along = graph.removed_by(node, name, shape_of(after[0]))
            removes = 0 in (along or ()) and node not in skip  # by no sizes: ranks differ
            if removes and is_of_layer(after[0], 0) and self.below(node, call, NEAR).data:
                return name
            left += [each for each in after if each not in known]
            known.update(after)
        return ""

    def _takes_data(self, node: Any, name: str) -> bool:
        """Whether something that is no parameter's comes in here: in a product, or with rows that
        its operand has not. Weights of a penalty on parameters, by how much each matters, have no
        rows of their own."""
        if name not in graph.OF_PARAMETERS and not graph.of_operands(node, name):
            return True
        after = graph.operands(node)
        if name == "IndexBackward0":  # numbers may be a batch's
            given = [each for each in saved(node, "indices") if each is not None]
            return any(each.dtype != torch.bool for each in given)
        if name == "MaskedSelectBackward0":
            return bool(saved(node, "mask").dim() > saved(node, "self").dim())
        if name in graph.PRODUCTS and name != "MulBackward0":
            return any(after is None for after, _ in node.next_functions[-2:])
        if graph.is_loss(name):
            given, target = saved(node, "self"), saved(node, "target")
            return target is None or bool(given.shape != target.shape)
        if name == "CdistBackward0":
            return len(after) < 2
        if name not in graph.BROADCAST or len(after) != 1:
            return False
        sizes, before = shape_of(node), shape_of(after[0])
        rows = {call.share.count for call in self._armed if call.share is not None}
        more = sizes != before and (len(sizes) > len(before) or sizes[0] != before[0])
        if self._only_rows and name == "MulBackward0":
            more |= any(map(_has_dims, (saved(node, "self"), saved(node, "other"))))
        return more and any(not each or sizes[0] % each == 0 for each in rows)

    def _is_trained(self, leaf: torch.Tensor) -> bool:
        """Whether a leaf is a parameter, be it of no module."""
        if isinstance(leaf, torch.nn.Parameter):
            return True
        return any(leaf is p for call in self._armed if call.bearer for p in call.bearer.trained)

    def _coupling(self, reduced: list[tuple[Any, str]], calls: list[TrainingCall]) -> str:
        """The operation that makes samples depend on each other; nothing where none does."""
        rows = next((each.share.count for each in calls if each.share is not None), 0)
        for node, name in reduced:
            if name == "MmBackward0":
                sides = [self.below(side, None, FAR).calls for side in graph.operands(node)]
                gathered = any(call.bearer is None for calls in sides for call in calls)
                if all(sides) and not gathered:
                    return name
            elif name in graph.DISTANCES and self._of_parameters(node):
                continue
            elif (
                graph.couples(node, name, rows)
                and not is_beside_rows(node)
                and not is_within_samples(node, rows)
                and self.below(node, None, FAR).calls
            ):
                return name
        return ""

    def _of_parameters(self, node: Any) -> bool:
        """Whether one of two sides, as centres that are learned, is of parameters alone."""
        sides = graph.operands(node)
        seen = [self.below(side, None, FAR) for side in sides if len(sides) == 2]
        return any(not (each.calls or each.data) for each in seen)


def bearers_of(starts: Sequence[Any], armed: Sequence[TrainingCall]) -> list[Bearer]:
    """Those that were called, and that a gradient from these nodes comes to. From call to call
    where their outputs are met; else by the parameters at the graph's leaves."""
    waiting = [*dict.fromkeys(call.bearer for call in armed if call.bearer is not None)]
    if len(waiting) == 1 and _marked(starts[0]):
        return waiting
    found: dict[Bearer, None] = {}
    owner = {id(p): bearer for bearer in waiting for p in bearer.trained}
    left: list[Any] = [*starts]
    known = {*left}
    for _ in range(_ALL):
        if not left or len(found) == len(waiting):
            break
        node = left.pop()
        call = call_at(node)
        if call is not None and (call.bearer is None or call.bearer.waits):
            if call.bearer is not None:
                found[call.bearer] = None
            after = [each for each in call.inputs if each is not None]
        else:
            after = [each for each, _ in node.next_functions if each is not None]
            if not after and (leaf := getattr(node, "variable", None)) is not None:
                bearer = owner.get(id(leaf))
                if bearer is not None:
                    found[bearer] = None
        for each in after:
            if each not in known:
                known.add(each)
                left.append(each)
    return [bearer for bearer in waiting if bearer in found]


def _has_dims(kept: object) -> bool:
    return isinstance(kept, torch.Tensor) and kept.dim() > 0


def _marked(node: Any) -> bool:
    """Whether a call's output is near a loss's end, as it mostly is."""
    for _ in range(8):
        if call_at(node) is not None:
            return True
        after = [each for each, _ in node.next_functions if each is not None]
        if not after:
            return False
        node = after[0]
    return False
