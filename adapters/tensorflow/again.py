"""What backward computes again in place of keeping it, as TensorFlow's recompute_grad does, but so
ordered that each part is let go of before the next.

TensorFlow runs last what nothing waits for, which the gradients of variables are: all of them
would hold what they are computed from until the end of backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

Run = Callable[..., Sequence[Any]]


def again(run: Run, tensors: Sequence[Any], *, in_order: bool) -> Sequence[Any]:
    """`run(*tensors)`, whose values backward computes again. in_order: whether it is held to this
    order, which in a graph that is split costs the last bit."""
    ordered = in_order and not tf.executing_eagerly()
    call: Run = _in_order(run) if ordered else tf.recompute_grad(run)
    return call(*tensors)


def _in_order(run: Run) -> Run:
    def forward(*inputs: Any) -> Any:
        def backward(*slopes: Any, variables: Sequence[Any] | None = None) -> Any:
            own = list(variables or [])
            with tf.GradientTape() as tape:
                taken = [tf.identity(x) for x in inputs]
                tape.watch([*taken, *own])
                with tf.control_dependencies(slopes):
                    given = run(*taken)
            by_inputs, by_own = tape.gradient(given, (taken, own), output_gradients=slopes)
            with tf.control_dependencies([g for g in by_own if g is not None]):
                by_inputs = [None if g is None else tf.identity(g) for g in by_inputs]
            return (by_inputs, by_own) if variables is not None else by_inputs

        return run(*inputs), backward

    call: Run = tf.custom_gradient(forward)
    return call
