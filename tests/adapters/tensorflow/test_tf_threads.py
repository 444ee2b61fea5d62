"""TensorFlow's collectives leave nothing behind in the process."""

from pathlib import Path

import pytest
from launch_scripts import alone, keras_on

from dream.launch.forks.foresight import IMPORTS

CODE = """
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


@pytest.mark.slow
def test_a_collective_leaves_no_thread_behind(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    environ = keras_on("tensorflow")
    done = alone([str(script)], environ[IMPORTS], environ)
    assert done.returncode == 0, done.stderr[-2000:]
