"""The Keras cases, in the order they run."""

from __future__ import annotations

from contract_keras_fit import CASES
from contract_keras_kit import start
from contract_keras_objects import CASES as _objects

__all__ = ["CASES", "start"]

assert _objects is CASES
