"""The Keras cases, in the order they run."""

from __future__ import annotations

import contract_keras_fit
import contract_keras_objects
from contract_keras_kit import CASES, start

__all__ = ["CASES", "start"]

assert contract_keras_fit.CASES is contract_keras_objects.CASES is CASES
