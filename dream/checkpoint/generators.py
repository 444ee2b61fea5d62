"""Python's and NumPy's generators: where they stand, and set to go on from there."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

_PYTHON, _NUMPY = "python", "numpy"


def state() -> dict[str, Any]:
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    numpy_state = (kind, keys.tobytes(), place, has_gauss, gauss)  # type: ignore[union-attr]
    version, words, held = random.getstate()
    python_state = (version, np.array(words, np.uint32).tobytes(), held)
    return {_PYTHON: python_state, _NUMPY: numpy_state}


def restore(kept: Mapping[str, Any]) -> None:
    version, words, held = kept[_PYTHON]
    random.setstate((version, tuple(np.frombuffer(words, np.uint32).tolist()), held))
    kind, keys, place, has_gauss, gauss = kept[_NUMPY]
    np.random.set_state((kind, np.frombuffer(keys, np.uint32), place, has_gauss, gauss))
