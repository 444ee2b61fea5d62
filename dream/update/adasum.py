"""Adasum (Maleki et al. 2020), as Horovod's core reckons it: gradients that are orthogonal are
added, those that are parallel are averaged.

Of two gradients a and b of one parameter: (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b. Of more,
ranks meet in pairs at distance 1, 2, 4 and so on, each with what its half has found.
"""

from __future__ import annotations

from dream._errors import ConfigurationError

TINY = 1e-8
"""A gradient whose squared norm is below that is added as it is, as in the core."""


def check_ranks(ranks: int) -> None:
    """Refuse a number of ranks that do not meet in pairs."""
    if ranks & (ranks - 1):
        raise ConfigurationError(
            "Adasum meets in pairs, and pairs of pairs. Received: op='adasum' on "
            f"{ranks} ranks. Start 2, 4, 8 or another power of two, or leave op out."
        )
