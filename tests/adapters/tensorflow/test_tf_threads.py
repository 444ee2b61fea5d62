"""TensorFlow's collectives leave no thread behind, and pipelines that ranks read have none whose
next look a pass's end may wait for."""

from pathlib import Path

import pytest
from launch_scripts import alone, keras_on

from dream.launch.forks.foresight import IMPORTS

COLLECTIVES = """
import os
import tensorflow as tf
from dream.adapters.tensorflow.collectives import Collectives

wire = Collectives(0, (0,), "ring", (7001,))
x = tf.ones(4)
again = tf.function(lambda x: wire.all_reduce([x], "sum")[0])

def threads():
    return len(os.listdir("/proc/self/task"))

for call in (lambda x: wire.all_reduce([x], "sum")[0], again):
    call(x)
    before = threads()
    for _ in range(100):
        call(x)
    assert threads() < before + 50, (before, threads())
os._exit(0)  # a version that leaves threads could not end
"""


PIPELINES = """
import numpy as np
import tensorflow as tf
from dream.adapters.keras.data import sources
from dream.adapters.keras.data.share import BATCH
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

wide = np.arange(8 << 19, dtype=np.float32).reshape(8, -1)  # its batches are gathered by several
first, second = of_arrays(found(wide), [1], halves)(0)
assert np.array_equal(first[BATCH], wide[1:4:2]), first
assert np.array_equal(second[BATCH], wide[5::2]), second
words = tf.constant([["a"]] * 8)
assert len(list(of_arrays(found(words), [0], halves)(0))) == 2
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [COLLECTIVES, PIPELINES], ids=["collectives", "pipelines"])
def test_no_thread_is_left_or_waited_for(code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    environ = keras_on("tensorflow")
    done = alone([str(script)], environ[IMPORTS], environ)
    assert done.returncode == 0, done.stderr[-2000:]
