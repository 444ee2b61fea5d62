"""Pipelines that ranks read have no thread whose next look a pass's end may wait for."""

from pathlib import Path

import pytest
from launch_scripts import alone, keras_on

from dream.launch.forks.foresight import IMPORTS

CODE = """
import numpy as np
import tensorflow as tf
from dream.adapters.keras.data import sources
from dream.adapters.tensorflow.data import untuned
from dream.adapters.tensorflow.keras.data import of_arrays, of_batches, no_digest
from dream.data.partition import Division

def tuned(dataset):
    return dataset.options().autotune.enabled

rows = np.zeros((8, 3), np.float32)
own = tf.data.Options()
own.autotune.enabled = True
plain = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(4)
asked = plain.with_options(own)
assert tuned(plain) is None and tuned(untuned(plain)) is False
assert tuned(untuned(asked)) is True  # a user's own word

def found(*data):
    return sources.find(*data, batch_size=4, passes=sources.DataPasses(), parts=2)

def stream():
    while True:
        yield rows, rows

halves = Division(2)
arrays = of_arrays(found(rows, rows), [0], halves)(0)
assert tuned(arrays) is False and len(list(arrays)) == 2
for batches, expected in ((plain, False), (asked, True), (stream(), False)):
    source = sources.find(batches, passes=sources.DataPasses(), parts=2)
    assert tuned(of_batches(source, [0], halves, no_digest)(0)) is expected, batches
"""


@pytest.mark.slow
def test_no_pipeline_of_ranks_is_tuned_unless_its_user_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    environ = keras_on("tensorflow")
    done = alone([str(script)], environ[IMPORTS], environ)
    assert done.returncode == 0, done.stderr[-2000:]
