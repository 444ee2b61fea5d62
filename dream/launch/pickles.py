"""Functions, arguments and results on their way between processes."""

from __future__ import annotations

import pickle
from typing import Any

from dream._errors import ConfigurationError


def dump(value: object, what: str) -> bytes:
    """cloudpickle where it is installed, which takes functions of `__main__` and lambdas; else
    pickle. ConfigurationError for what cannot travel."""
    try:
        data: bytes = _pickler().dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"{what} cannot travel between processes. Received: {_short(value)} ({error}). Take "
            "a function of an importable module and values that pickle."
        ) from error
    return data


def can_carry_main() -> bool:
    """Whether functions written in a notebook or script travel."""
    return _pickler() is not pickle


def _pickler() -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        return pickle
    return cloudpickle


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def load(data: bytes) -> Any:
    """What `dump` packed in this job."""
    return pickle.loads(data)
