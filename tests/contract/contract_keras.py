"""The Keras cases, in the order they run."""

from __future__ import annotations

import contract_keras_fit
import contract_keras_knobs
import contract_keras_objects
import contract_keras_travel
from contract_keras_kit import CASES, start

__all__ = ["CASES", "start"]

_ROOMS = (contract_keras_fit, contract_keras_objects, contract_keras_knobs, contract_keras_travel)
assert all(room.CASES is CASES for room in _ROOMS)
