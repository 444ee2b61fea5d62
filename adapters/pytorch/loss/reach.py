"""Which distributed modules a backward pass comes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dream.adapters.pytorch.loss.calls import Bearer, Call, call_at

_FAR = 100_000
"""Nodes that are looked at."""


def bearers_of(starts: Sequence[Any], armed: Sequence[Call]) -> list[Bearer]:
    """Those that were called, and that a gradient from these nodes comes to. From call to call
    where their outputs are met; else by the parameters at the graph's leaves."""
    waiting = [*dict.fromkeys(call.bearer for call in armed if call.bearer is not None)]
    if len(waiting) == 1 and _marked(starts[0]):
        return waiting
    found: dict[Bearer, None] = {}
    owner = {id(p): bearer for bearer in waiting for p in bearer.trained}
    left: list[Any] = [*starts]
    known = {*left}
    for _ in range(_FAR):
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
