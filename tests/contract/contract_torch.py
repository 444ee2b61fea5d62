"""The torch cases, in the order they run."""

from __future__ import annotations

from contract_torch_data import CASES
from contract_torch_explicit import CASES as _explicit
from contract_torch_kit import start
from contract_torch_objects import CASES as _objects
from contract_torch_probes import CASES as _probes
from contract_torch_refusals import CASES as _refusals
from contract_torch_training import CASES as _training

__all__ = ["CASES", "start"]

assert all(cases is CASES for cases in (_explicit, _objects, _probes, _refusals, _training))
