"""Names of TensorFlow that it does not document, all that dream needs. Read off TensorFlow 2.21,
and held by tests/adapters/tensorflow/test_tf_private.py."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf
from tensorflow.experimental import dtensor

LIBRARY = "libtensorflow_cc.so"
"""The file whose sockets TensorFlow's server is on."""
ResourceVariable = dtensor.DVariable.__base__
"""The class of an ordinary variable."""


def waiting_files() -> list[str]:
    """Where the stack of a thread stands that waits inside a tf.function."""
    eager = Path(tf.__file__).parent / "python" / "eager"
    return [str(eager / name) for name in ("execute.py", "context.py")]


def is_unreadable_handle(error: ValueError) -> bool:
    """Whether a variable of several replicas was read outside of one."""
    return "DistributedVariable.handle" in str(error)
