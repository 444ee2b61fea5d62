"""Functions that TensorFlow traces: and how often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, final

import tensorflow as tf

from dream.adapters.keras import private

Function = TypeVar("Function", bound=Callable[..., Any])


def as_it_stands(function: Function) -> Function:
    """Have TensorFlow trace a function of dream's own without a rewrite of its source by AutoGraph,
    which takes longer than the trace. Not for what calls a user's function, whose `if` may be on
    tensors."""
    kept: Function = tf.autograph.experimental.do_not_convert(function)
    return kept


@final
class Compiled:
    """`function`, as a tf.function.

    Its first trace leaves the length of a batch open, so that the short last batch of an epoch
    needs no other; batches that differ in more than that are traced again.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = tf.function(function, reduce_retracing=True, jit_compile=False)
        self._traced = False

    def __call__(self, *batch: Any) -> Any:
        if not self._traced:
            self._function.get_concrete_function(*any_length(batch))
            self._traced = True
        return self._function(*batch)


def any_length(batch: Any) -> Any:
    """The specs of a batch's tensors, or of what replicas hold of them, first dim open."""
    return tf.nest.map_structure(lambda x: _open(tf.type_spec_from_value(x)), batch)


def _open(spec: tf.TypeSpec) -> tf.TypeSpec:
    if isinstance(spec, tf.TensorSpec):
        shape = spec.shape if spec.shape.rank == 0 else [None, *spec.shape[1:]]
        return tf.TensorSpec(shape, spec.dtype)
    return type(spec)(*map(_open, tf.nest.flatten(spec, expand_composites=True)))


def spec_of(one_length: bool, x: Any) -> tf.TensorSpec | None:
    """Return the spec that a function is traced for: a tensor like x, of any length where not of
    one."""
    if x is None:
        return None
    shape = x.shape if one_length or not x.shape.rank else [None, *x.shape[1:]]
    return tf.TensorSpec(shape, x.dtype)


@final
class Shaped:
    """`function`, as tf.functions that know how long a batch is, or do not, as Keras's own would:
    it counts batches of unknown length alike."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._traced: dict[bool, Any] = {}

    def __call__(self, one_length: bool, *given: Any) -> Any:
        if one_length not in self._traced:
            traced = tf.function(self._function, reduce_retracing=True, jit_compile=False)
            leave = partial(spec_of, one_length)
            traced.get_concrete_function(*(private.tree.map_structure(leave, x) for x in given))
            self._traced[one_length] = traced
        return self._traced[one_length](*given)
