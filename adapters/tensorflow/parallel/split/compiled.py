"""Functions that run on a mesh: global batches in, ordinary tensors out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.parallel.split.held import Held
from dream.adapters.tensorflow.parallel.split.onto import Onto, leaves
from dream.adapters.tensorflow.parallel.split.updating import stepping
from dream.adapters.tensorflow.tracing import spec_of


@final
class Traced:
    """A function of DTensors, traced for each of their shapes; or once for all lengths of a batch
    where it may not know that they are of one."""

    def __init__(self, function: Callable[..., Any], *, one_length: bool = True) -> None:
        self._function = function
        self._one_length = one_length
        self._graphs: dict[Any, Any] = {}

    def __call__(self, *laid: Any) -> Any:
        specs = private.tree.map_structure(partial(spec_of, self._one_length), laid)
        key = _key(specs)
        if key not in self._graphs:
            graph = tf.function(self._trace, jit_compile=False, input_signature=specs)
            _check_captured(graph.get_concrete_function().graph)
            self._graphs[key] = graph
        return self._graphs[key](*laid)

    def _trace(self, *batch: Any) -> Any:
        token = stepping.set(True)
        try:
            return self._function(*batch)
        finally:
            stepping.reset(token)


def compiled(
    function: Callable[..., Any], onto: Onto, kind: str, *, one_length: bool = True
) -> Callable[..., Any]:
    """From whole batches what `function` gives, as ordinary tensors. kind: what the ranks call it
    to one another."""
    traced = Traced(function, one_length=one_length)

    def call(*batch: Any) -> Any:
        with explained():
            onto.together.step(kind)
            return onto.whole(traced(*onto.batch(batch)))

    return call


def _key(specs: Any) -> Any:
    return tuple((tuple(spec.shape), spec.dtype) for spec in leaves(specs))


def _check_captured(graph: Any) -> None:
    """Refuse variables that do not lie on the mesh: each device would have its own."""
    if foreign := [v.name for v in graph.variables if not isinstance(v, Held)]:
        raise Unsupported(
            "A step on a mesh uses variables that dream has not laid out. Received: "
            f"{', '.join(foreign)}. Make them weights of the model (add_weight), or use 'mirrored'."
        )


@contextmanager
def explained() -> Iterator[None]:
    """DTensor's refusals in dream's words."""
    try:
        with translated():
            yield
    except (tf.errors.UnknownError, tf.errors.InvalidArgumentError) as error:
        text = str(error)
        if "layout propagation" not in text and "SPMD" not in text:
            raise
        found = re.search(r'"?\'?tf\.(\w+)', text)
        operation = found.group(1) if found else "an operation"
        raise Unsupported(
            f"TensorFlow cannot split this operation over a mesh. Received: {operation}. "
            f"{text.strip().splitlines()[0]} Use 'mirrored', or model_parallel with "
            "split='pipeline', which run every operation."
        ) from error
