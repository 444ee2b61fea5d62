"""What devices and the links between them can do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from dream._errors import Unsupported
from dream.tools.plan.sketch import Kind, Op


@final
@dataclass(frozen=True, slots=True)
class Link:
    """latency: seconds before the first byte of a message; bandwidth: bytes a second that a
    device sends while it receives as many."""

    latency: float
    bandwidth: float


@final
@dataclass(frozen=True, slots=True)
class Hardware:
    """Devices in hosts.

    memory: bytes of a device, None where it is not known; flops: by dtype and kind of operation,
        a second; bandwidth: bytes a second to and from the device's memory.
    launch: seconds that each operation costs whatever it does.
    known: seconds of operations that were timed by themselves, by call; overheads: what each of
        these costs in a step besides, by strategy; beside: the same of the strategy at hand.
    per_host: devices that share a host; near: the link between them; far: between hosts, for
        each device while all of its host send. call: seconds that each collective costs besides.
    overlaps: whether devices send while they compute; fused: whether an optimizer's step takes
        all parameters at once, with temporaries for all.
    fresh: seconds of each byte that the system must give anew, step by step.
    sources: of the figures, and what of them is assumed.
    """

    name: str
    memory: int | None
    flops: Mapping[str, Mapping[Kind, float]]
    bandwidth: float
    launch: float
    per_host: int
    near: Link
    far: Link
    call: float
    overlaps: bool
    fused: bool
    sources: tuple[str, ...]
    known: Mapping[str, float] = field(default_factory=dict)
    overheads: Mapping[str, float] = field(default_factory=dict)
    beside: float = 0.0
    fresh: float = 0.0

    def under(self, strategy: str) -> Hardware:
        """As it is for one strategy."""
        return replace(self, beside=self.overheads.get(strategy, self.beside))

    def seconds(self, op: Op, dtype: str, share: float = 1.0) -> float:
        """One operation, of which a device does a share: what it took by itself, where it was
        timed (as in Jia et al., arXiv:1807.05358, section 5.1); else the longer of computing and of
        moving bytes (the roofline; Williams, Waterman, Patterson, CACM 52(4), 2009)."""
        if op.call in self.known:
            return share * self.known[op.call] + self.beside
        rate = self.rates(dtype)[op.kind]
        return share * max(op.flops / rate, op.moved / self.bandwidth) + self.launch

    def rates(self, dtype: str) -> Mapping[Kind, float]:
        if dtype not in self.flops:
            raise Unsupported(
                f"{self.name} does not compute in this precision. Received: {dtype}. Use one of: "
                f"{', '.join(self.flops)}."
            )
        return self.flops[dtype]


Machine = Callable[[int, Iterable[Op]], Hardware]
"""So many devices of a machine, for a step of some operations: each has the same, save where ranks
share a CPU's cores."""
