"""The torch cases, in the order they run."""

from __future__ import annotations

import contract_torch_data
import contract_torch_explicit
import contract_torch_knobs
import contract_torch_levels
import contract_torch_objects
import contract_torch_owned
import contract_torch_owned_knobs
import contract_torch_probes
import contract_torch_refusals
import contract_torch_training
import contract_torch_travel
from contract_torch_kit import CASES, start

__all__ = ["CASES", "start"]

_ROOMS = (
    contract_torch_training,
    contract_torch_data,
    contract_torch_explicit,
    contract_torch_objects,
    contract_torch_owned,
    contract_torch_owned_knobs,
    contract_torch_knobs,
    contract_torch_levels,
    contract_torch_travel,
    contract_torch_probes,
    contract_torch_refusals,
)
assert all(room.CASES is CASES for room in _ROOMS)
