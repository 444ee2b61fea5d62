"""What is asked of a row, and how it is told."""

from __future__ import annotations

from enum import StrEnum

MIXED_LIMIT = 1e-5
"""Largest difference of a parameter from `single` where ranks are of two frameworks, whose
arithmetic differs in the last bit; else it is that of `dream verify`."""
CONVERGED = 0.5
"""How far the loss must come down at least, where nothing is meant to equal `single`: the part of
the way that single's own goes, from its first figure to its last."""
SCORE_LIMIT = 0.01
"""Rounding may tip a sample that lies on the border between two classes; not one in a hundred."""

POINT = 0.01
"""How much less than the score of `single` at its end is as good."""


class Verdict(StrEnum):
    ORACLE = "the oracle"
    EQUAL = "equal"
    LEARNS = "learns"
    DIFFERS = "DIFFERS"
    RANKS_DIFFER = "RANKS DIFFER"
    WRONG_FIGURES = "WRONG FIGURES"
    WRONG_PLACE = "WRONG PLACE"
    LEARNS_NOT = "DOES NOT LEARN"
    UNPROVEN = "UNPROVEN"
    IMPOSSIBLE = "CANNOT RUN"
    CRASHED = "CRASHED"
    TIMED_OUT = "TIMED OUT"
    REFUSED = "refused"
    SKIPPED = "skipped"

    @property
    def good(self) -> bool:
        return self in _GOOD


_GOOD = (Verdict.ORACLE, Verdict.EQUAL, Verdict.LEARNS, Verdict.SKIPPED, Verdict.REFUSED)
