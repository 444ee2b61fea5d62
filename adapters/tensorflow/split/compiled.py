"""Functions that run on a mesh: global batches in, ordinary tensors out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.adapters.tensorflow.errors import translated
from dream.adapters.tensorflow.split.held import Held
from dream.adapters.tensorflow.split.onto import Onto, leaves
from dream.adapters.tensorflow.split.updating import stepping
from dream.adapters.tensorflow.tracing import spec_of


def compiled(
    function: Callable[..., Any], onto: Onto, kind: str, *, one_length: bool = True
) -> Callable[..., Any]:
    """`function`, traced for each length of a batch; or once for all where it may not know that
    they are of one length. kind: what the ranks call it to one another."""
    graphs: dict[Any, Any] = {}

    def traced(*batch: Any) -> Any:
        token = stepping.set(True)
        try:
            return function(*batch)
        finally:
            stepping.reset(token)

    def call(*batch: Any) -> Any:
        with explained():
            onto.together.step(kind)
            laid = onto.batch(batch)
            specs = private.tree.map_structure(partial(spec_of, one_length), laid)
            key = _key(specs)
            if key not in graphs:
                graphs[key] = tf.function(traced, jit_compile=False, input_signature=specs)
                _check_captured(graphs[key].get_concrete_function().graph)
            return onto.whole(graphs[key](*laid))

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
