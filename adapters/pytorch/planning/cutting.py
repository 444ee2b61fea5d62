"""Which layers tensor parallelism can divide: those whose columns go on to a layer's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from torch import nn

from dream.adapters.pytorch.planning.calls import Call


@final
@dataclass(frozen=True, slots=True)
class Block:
    """start, stop: operations before and after what is divided. size: what the number of parts
    must divide. parameters: names of those that are divided. forward, backward: bytes that are
    added up over the parts in each pass."""

    start: int
    stop: int
    size: int
    parameters: tuple[str, ...]
    forward: int
    backward: int


def blocks(calls: Sequence[Call], units: Mapping[str, str]) -> list[Block]:
    """MLPs and attention, as Megatron-LM divides them (Shoeybi et al., arXiv:1909.08053, section
    3): an all_reduce of the output in forward, and one of the input's gradient in backward."""
    found = [_attention(call) for call in calls if isinstance(call.module, nn.MultiheadAttention)]
    linear = [call for call in calls if type(call.module) is nn.Linear]
    at = 0
    while at < len(linear):
        firsts = [linear[at]]
        while at + len(firsts) < len(linear) and linear[at + len(firsts)].given == firsts[0].given:
            firsts.append(linear[at + len(firsts)])
        after = at + len(firsts)
        if after < len(linear) and _meets(firsts, linear[after], units):
            found.append(_block(firsts, linear[after]))
            after += 1
        at = after
    return found


def _meets(firsts: Sequence[Call], last: Call, units: Mapping[str, str]) -> bool:
    """Whether what the first layers give is what the last one takes. Queries, keys and values may
    be one layer's."""
    out = {_features(call)[1] for call in firsts}
    taken = _features(last)[0]
    fused = len(firsts) == 1 and out == {3 * taken}
    same_unit = len({units[call.name] or call.name for call in (*firsts, last)}) == 1
    together = same_unit or all("." not in call.name for call in (*firsts, last))
    return together and (out == {taken} or fused)


def _features(call: Call) -> tuple[int, int]:
    module = call.module
    assert isinstance(module, nn.Linear)
    return module.in_features, module.out_features


def _block(firsts: Sequence[Call], last: Call) -> Block:
    names = [f"{call.name}.{part}" for call in firsts for part in ("weight", "bias")]
    return Block(
        firsts[0].start,
        last.stop - 1,
        min(_features(call)[1] for call in firsts),
        (*names, f"{last.name}.weight"),
        last.gave,
        firsts[0].took,
    )


def _attention(call: Call) -> Block:
    module = call.module
    assert isinstance(module, nn.MultiheadAttention)
    kinds = ("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    names = tuple(f"{call.name}.{kind}" for kind in kinds)
    return Block(
        call.start,
        call.stop - 1,
        module.num_heads,
        (*names, f"{call.name}.out_proj.weight"),
        call.took,
        call.took,
    )
