"""The ports that a job may listen on, where a firewall lets only some of them through."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from dream._errors import ConfigurationError
from dream.cluster import _names
from dream.cluster._read import LARGEST_PORT


@dataclass(frozen=True, slots=True)
class PortRange:
    """low to high, both among them."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, source: str) -> Self:
        """LOW-HIGH. source: who wrote it, for the message."""
        low, dash, high = text.partition("-")
        if not (dash and low.isdecimal() and high.isdecimal()):
            raise _unfit(text, source)
        if not 0 < int(low) <= int(high) <= LARGEST_PORT:
            raise _unfit(text, source)
        return cls(int(low), int(high))

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"

    @property
    def ports(self) -> range:
        return range(self.low, self.high + 1)


def port_range(environ: Mapping[str, str] = os.environ) -> PortRange | None:
    """DREAM_PORT_RANGE; None where any free port will do."""
    text = environ.get(_names.PORT_RANGE)
    return PortRange.parse(text, _names.PORT_RANGE) if text else None


def ports_in_words() -> str:
    """Which ports are listened on, for a line."""
    within = port_range()
    return f"ports {within}" if within else "free ports"


def used_up(within: PortRange | None = None) -> ConfigurationError:
    """Where a listener finds no port. within: else the range that the environment names."""
    return ConfigurationError(
        f"No port is free to listen on. Received: {_names.PORT_RANGE}={within or port_range()}. "
        "Give a wider range: a rank takes a handful, and one more for each group of ranks. A port "
        "is free again a minute after the job that used it."
    )


def _unfit(text: str, source: str) -> ConfigurationError:
    return ConfigurationError(
        f"{source} is no range of ports. Received: {text!r}. Write LOW-HIGH, both from 1 to "
        f"{LARGEST_PORT}, like 40000-40099."
    )
