"""One of the two models that are held against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from dream.tools.port_check.probe import Facts, Passes
from dream.tools.port_check.shake import Weights


@final
@dataclass(frozen=True, slots=True)
class Side:
    """What one model's process told."""

    facts: Facts
    passes: Passes
    weights: Weights
