"""What backward computes again is of the weights that forward had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.grappler import tf_optimizer

from dream.adapters.tensorflow.engine import recomputed

Recompute = Callable[[Callable[..., Any], Sequence[Any]], Sequence[Any]]


def step(recompute: Recompute) -> Any:
    """Two layers after each other, each computed again, and updated."""
    weights = [tf.Variable(tf.ones((4, 4))) for _ in range(2)]

    @tf.function(jit_compile=False)
    def train(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            for weight in weights:
                (x,) = recompute(lambda x, w=weight: [tf.matmul(tf.sin(x), w)], [x])
            loss = tf.reduce_sum(x * x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(gradient)
        return loss

    return train.get_concrete_function(tf.TensorSpec((None, 4))), weights


def rewritten(function: Any) -> dict[str, Any]:
    """The nodes of a step as Grappler has them run."""
    graph = function.graph
    meta = tf.compat.v1.train.export_meta_graph(graph_def=graph.as_graph_def(), graph=graph)
    kept = meta_graph_pb2.CollectionDef()
    ends = [*function.inputs, *function.outputs]
    kept.node_list.value.extend([t.name for t in ends] + [op.name for op in graph.control_outputs])
    meta.collection_def["train_op"].CopyFrom(kept)
    found = tf_optimizer.OptimizeGraph(config_pb2.ConfigProto(), meta)
    return {node.name: node for node in found.node}


def unordered(nodes: dict[str, Any]) -> list[tuple[str, str]]:
    """Reads of a variable, and updates of it, neither of which comes after the other."""
    before: dict[str, set[str]] = {}

    def all_before(name: str) -> set[str]:
        if name not in before:
            own = {i.lstrip("^").split(":")[0] for i in nodes[name].input}
            before[name] = own.union(*map(all_before, own))
        return before[name]

    reads = [n for n in nodes.values() if n.op == "ReadVariableOp"]
    updates = [n for n in nodes.values() if n.op == "AssignSubVariableOp"]
    assert len(updates) == 2
    assert len(reads) >= 4  # each weight is read forward, and again
    return [
        (r.name, u.name) for r in reads for u in updates
        if r.input[0] == u.input[0] and r.name not in all_before(u.name)
    ]  # fmt: skip


def test_weights_are_read_again_before_they_are_updated() -> None:
    function, _ = step(recomputed)
    assert not unordered(rewritten(function))


def test_tensorflows_own_may_read_them_after() -> None:
    """The reason for dream's: where this fails, TensorFlow's is right, and may be used."""
    function, _ = step(lambda run, given: tf.recompute_grad(run)(*given))
    assert unordered(rewritten(function))


def test_gradients_are_those_without() -> None:
    x = tf.random.stateless_normal((3, 4), (1, 2))
    found = []
    for recompute in (recomputed, lambda run, given: run(*given)):
        function, weights = step(recompute)
        losses = [float(function(x)) for _ in range(2)]
        found.append([*losses, *(w.numpy() for w in weights)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_what_has_no_gradient_may_come_with_what_has() -> None:
    weight = tf.Variable(2.0)

    @tf.function(jit_compile=False)
    def train(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            kept, found = recomputed(lambda x: [x > 0.0, x * weight], [x])
            loss = tf.reduce_sum(tf.where(kept, found, 0.0))
        return tape.gradient(loss, weight)

    assert float(train(tf.constant([1.0, -1.0, 3.0]))) == 4.0
