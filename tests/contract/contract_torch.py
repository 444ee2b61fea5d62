"""The torch cases, in the order they run."""

from __future__ import annotations

import contract_torch_data
import contract_torch_explicit
import contract_torch_objects
import contract_torch_probes
import contract_torch_refusals
import contract_torch_training  # noqa: F401
from contract_torch_kit import CASES, start

__all__ = ["CASES", "start"]
