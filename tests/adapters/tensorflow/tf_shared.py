"""A rank that adds up in shared memory, eagerly and in a graph."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import dream

c = dream.communicator("shared_memory", framework="tensorflow")
x = tf.cast(tf.range(5), tf.float32) + float(c.rank)
wanted = 2 * np.arange(5.0) + 1
graph = tf.function(lambda x: c.unchecked().all_reduce(x, "sum"))
assert np.array_equal(c.all_reduce(x, "sum"), wanted)
assert np.array_equal(graph(x), wanted)
assert np.array_equal(graph(x), wanted)
print(f"op: {c._wire._op is not None}")
