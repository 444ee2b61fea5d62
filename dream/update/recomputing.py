"""`recompute="auto"`: which blocks of a model are computed again in backward, so that what is kept
fits a budget at the least time. A framework measures; this chooses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dream.files import sizes

AUTO: Final = "auto"
_POINTS = 64
"""Of a block's front: how finely bytes are weighed against time."""
_SIZES = 8
"""Of blocks, as a limit on what is computed again at a time."""
_TRIFLE = 1000
"""A block that saves less than this part of all is left alone."""
_BACKWARD = 2
"""Times of a forward pass that backward takes."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a model that is called as one. parent: the block whose call it is in. takes:
    whether it can be computed again. inputs: the storages that it is called with."""

    name: str
    kind: str
    parent: int | None
    seconds: float
    takes: bool
    inputs: frozenset[int]


def blocks_of(
    keys: Sequence[tuple[object, int | None]],
    kinds: Sequence[str],
    seconds: Sequence[float],
    fixed: Collection[int],
    inputs: Sequence[Collection[int]],
) -> tuple[Block, ...]:
    """Make the blocks of a model, in the order of their first calls. keys: of each, its name and
    the block above. fixed: those that cannot be computed again, so that none around them can; nor
    can one that is called in several places."""
    held = set(fixed)
    for index in reversed(range(len(keys))):
        above = keys[index][1]
        if index in held and above is not None:
            held.add(above)
    calls = Counter(name for name, _ in keys)
    return tuple(
        Block(
            str(name), kinds[index], above, seconds[index],
            index not in held and calls[name] == 1, frozenset(inputs[index]),
        )
        for index, (name, above) in enumerate(keys)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """A training step's forward pass. blocks: parents before their parts. sizes: of each storage.
    saves: which storages backward needs, and in which block they were saved, in order. seconds: of
    the outermost blocks."""

    blocks: tuple[Block, ...]
    sizes: tuple[int, ...]
    saves: tuple[tuple[int | None, int], ...]
    seconds: float

    @property
    def total(self) -> int:
        return sum(self.sizes[storage] for storage in {storage for _, storage in self.saves})

    def most(self, chosen: Collection[int]) -> tuple[int, int]:
        """The bytes that are kept when `chosen` are computed again, and the most that are there at
        a time: what came before a block, and all that is inside it while backward is there."""
        owners: list[int | None] = []
        for index, block in enumerate(self.blocks):
            above = None if block.parent is None else owners[block.parent]
            owners.append(index if above is None and index in chosen else above)
        kept: set[int] = set()
        inside: dict[int, set[int]] = {}
        held = peak = 0
        again: Counter[int] = Counter()
        for place, storage in self.saves:
            owner = None if place is None else owners[place]
            if owner is not None and owner not in inside:
                inside[owner] = set()
                held += self._added(kept, self.blocks[owner].inputs)
            if owner is None:
                held += self._added(kept, (storage,))
            elif storage not in kept and storage not in inside[owner]:
                inside[owner].add(storage)
                again[owner] += self.sizes[storage]
            peak = max(peak, held + (0 if owner is None else again[owner]))
        return held, peak

    def _added(self, kept: set[int], storages: Collection[int]) -> int:
        new = set(storages) - kept
        kept |= new
        return sum(self.sizes[storage] for storage in new)

    def inside(self) -> list[int]:
        """The bytes that are saved within each block."""
        within: list[set[int]] = [set() for _ in self.blocks]
        for place, storage in self.saves:
            while place is not None:
                within[place].add(storage)
                place = self.blocks[place].parent
        return [sum(self.sizes[storage] for storage in found) for found in within]


@dataclass(frozen=True, slots=True)
class _Choice:
    saved: int
    seconds: float
    blocks: tuple[int, ...] = ()

    def beside(self, other: _Choice) -> _Choice:
        blocks = self.blocks + other.blocks
        return _Choice(self.saved + other.saved, self.seconds + other.seconds, blocks)


def choose(
    measured: Measured, budget: float | str, *, stated: bool
) -> tuple[list[str] | None, str]:
    """The names of blocks, none where they must fit and do not; and what is to be said. budget:
    bytes, a size, or up to 1 the share of all. stated: by the user, who is then held to it."""
    whole = measured.most(())[1]
    if isinstance(budget, str):
        limit = sizes.parse(budget)
    else:
        limit = max(0, round(budget * whole if budget <= 1 and stated else budget))
    picked, peak = _search(measured, limit)
    over = sizes.show(peak - limit)
    if peak > limit and stated:
        return None, (
            f"A step's activations do not fit. Received: memory_budget={budget!r}, which is "
            f"{sizes.show(limit)}. They take {sizes.show(whole)}, and {sizes.show(peak)} at least "
            f"where blocks are computed again: {over} too much. Give a larger memory_budget, "
            "smaller batches, or accumulate=."
        )
    missing = f"; {over} more than is free" if peak > limit else ""
    names = [measured.blocks[index].name for index in picked.blocks]
    return names, _line(measured, picked, peak) + missing


def _search(measured: Measured, budget: int) -> tuple[_Choice, int]:
    """The cheapest choice that fits; else the one that comes nearest."""
    whole = measured.most(())[1]
    best, peak = _Choice(0, 0.0), whole
    if whole <= budget:
        return best, peak
    gains = _gains(measured)
    inside = measured.inside()
    limits = sorted({inside[index] for index in gains}, reverse=True)
    fits = False
    for limit in limits[:: -(-len(limits) // _SIZES)] if limits else ():
        allowed = {index: gain for index, gain in gains.items() if inside[index] <= limit}
        for choice in sorted(_front(measured, allowed), key=lambda choice: choice.seconds):
            if fits and choice.seconds >= best.seconds:
                break
            _, most = measured.most(choice.blocks)
            if most <= budget or (not fits and most < peak):
                best, peak, fits = choice, most, most <= budget
            if most <= budget:
                break
    return best, peak


def _gains(measured: Measured) -> dict[int, int]:
    """The bytes that each block saves which is computed again by itself."""
    kept, _ = measured.most(())
    found = {
        index: kept - measured.most((index,))[0]
        for index, block in enumerate(measured.blocks)
        if block.takes
    }
    return {index: gain for index, gain in found.items() if gain > kept // _TRIFLE}


def _front(measured: Measured, gains: Mapping[int, int]) -> list[_Choice]:
    """The choices than which none saves more in less time."""
    fronts: defaultdict[int | None, list[_Choice]] = defaultdict(lambda: [_Choice(0, 0.0)])
    for index in reversed(range(len(measured.blocks))):  # parts before what they are of
        block = measured.blocks[index]
        front = fronts.pop(index, [_Choice(0, 0.0)])
        if index in gains:
            front = _best([*front, _Choice(gains[index], block.seconds, (index,))])
        if len(front) > 1:
            above = fronts[block.parent]
            fronts[block.parent] = _best([a.beside(b) for a in above for b in front])
    return fronts[None]


def _best(choices: list[_Choice]) -> list[_Choice]:
    """Those that no other beats in both, at most so many."""
    step = max(choice.saved for choice in choices) / _POINTS
    found: list[_Choice] = []
    for choice in sorted(choices, key=lambda choice: (-choice.saved, choice.seconds)):
        if found and choice.seconds >= found[-1].seconds:
            continue
        if len(found) > 1 and found[-1].saved // step == choice.saved // step:
            found.pop()
        found.append(choice)
    return found


def _line(measured: Measured, picked: _Choice, peak: int) -> str:
    whole = sizes.show(measured.most(())[1])
    if not picked.blocks:
        return f"recompute: nothing, activations of {whole} fit"
    of = Counter(block.kind for block in measured.blocks)
    kinds = Counter(measured.blocks[index].kind for index in picked.blocks)
    blocks = ", ".join(f"{count} of {of[kind]} {kind}" for kind, count in kinds.items())
    longer = picked.seconds / ((1 + _BACKWARD) * measured.seconds)
    return (
        f"recompute: {blocks}, activations {whole} to {sizes.show(peak)}, about {longer:.0%} more "
        "time"
    )
