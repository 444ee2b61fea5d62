"""What `dream verify` changes in a Keras model to see what rounding alone does."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import keras
import numpy as np
from dream.adapters.keras.tools.verify import nudge

built = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30)])
before = keras.ops.convert_to_numpy(built.trainable_variables[0])
assert nudge(built)
apart = np.abs(keras.ops.convert_to_numpy(built.trainable_variables[0]) / before - 1)
assert 0 < apart.min() and apart.max() < 3e-7, apart

later = keras.Sequential([keras.layers.Dense(30)])
assert not nudge(later)  # its first batch makes what there is to change
later(np.zeros((1, 20)))
assert nudge(later)
"""


def test_weights_begin_one_rounding_away_once_there_are_any() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
