"""Observe Keras's own loops for `dream verify`, and take out of training what a difference may
come of. Keras is changed once, for the life of a process that is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, final

import keras
import numpy as np

from dream.adapters.keras import callbacks, consistency, private
from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.private import tree
from dream.tools.record import RecordRequest, Traits
from dream.tools.recorder import Recorder
from dream.tools.verify.judge import ROUNDING

_TORCH = "_torch_params."
"""Keras on torch keeps a model's variables under this name, and those of its parts once more."""


def traits(model: Any) -> Traits:
    """Read off the model's layers. Seeds and metrics are none of its weights."""
    weights = {variable.path for variable in model.weights}

    def named(name: str) -> str | None:
        path = name.removeprefix(_TORCH)
        return path if path in weights else None

    return Traits(
        dtype=str(model.dtype_policy.compute_dtype),
        trained={variable.path for variable in model.trainable_variables},
        draws=[layer.name for layer in private.layers_of(model) if private.own_seeds(layer)],
        statistics=consistency.local_statistics(model),
        named=named,
    )


def nudge(model: Any) -> bool:
    """Change each number of its weights that are trained by a rounding, up or down; return whether
    it has any yet: a model may be built by its first batch."""
    draw = np.random.default_rng(0)
    for variable in model.trainable_variables:
        value = keras.ops.convert_to_numpy(variable)
        up = draw.choice((-1, 1), value.shape)
        variable.assign(value * (1 + up * ROUNDING[str(value.dtype)]).astype(value.dtype))
    return bool(model.trainable_variables)


_NOISY = (keras.layers.GaussianNoise, keras.layers.GaussianDropout, keras.layers.AlphaDropout)
"""Layers that draw otherwise than by dropout."""


def change(request: RecordRequest) -> None:
    """Change what the request names, for the life of this process."""
    if "no dropout" in request.changes:
        private.backend_random.dropout = _kept_whole
        for noisy in _NOISY:
            noisy.call = _as_in_use(noisy.call)
    if "fixed statistics" in request.changes:
        norm = keras.layers.BatchNormalization
        norm.call = _as_in_use(norm.call)
    if request.parts > 1:
        whole = "reordered" in request.changes
        keras.Model.__call__ = _in_parts(keras.Model.__call__, request.parts, whole=whole)


def _kept_whole(inputs: Any, *_: Any, **__: Any) -> Any:
    return inputs


def _as_in_use(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's call that never trains."""

    @wraps(call)
    def wrapped(self: Any, inputs: Any, training: Any = None, **given: Any) -> Any:
        del training
        return call(self, inputs, training=False, **given)

    return wrapped


def _in_parts(call: Callable[..., Any], parts: int, *, whole: bool) -> Callable[..., Any]:
    """`Model.__call__` of the outermost model in training: on every parts-th sample at a time, so
    that gradients are summed as ranks sum them. whole: on all of them, in that order."""
    busy = False

    @wraps(call)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal busy
        leaves = tree.flatten((args, kwargs))
        symbolic = any(isinstance(x, keras.KerasTensor) for x in leaves)
        if busy or symbolic or kwargs.get("training") is not True:
            return call(self, *args, **kwargs)
        busy = True
        try:
            if whole:
                output = call(self, *_reordered(args, parts), **_reordered(kwargs, parts))
                return tree.map_structure(lambda piece: _back(piece, parts), output)
            outputs = [
                call(self, *_part(args, part, parts), **_part(kwargs, part, parts))
                for part in range(parts)
            ]
        finally:
            busy = False
        return tree.map_structure(lambda *pieces: _joined(pieces), *outputs)

    return wrapped


def _part(given: Any, part: int, parts: int) -> Any:
    def cut(x: Any) -> Any:
        return x[part::parts] if getattr(x, "shape", ()) else x

    return tree.map_structure(cut, given)


def _reordered(given: Any, parts: int) -> Any:
    """Put the parts' samples one behind the other."""

    def order(x: Any) -> Any:
        cut = [x[part::parts] for part in range(parts)] if getattr(x, "shape", ()) else []
        return keras.ops.concatenate(cut) if cut else x

    return tree.map_structure(order, given)


def _joined(pieces: tuple[Any, ...]) -> Any:
    """Return the pieces' rows in the samples' order."""
    return _back(keras.ops.concatenate(list(pieces)), len(pieces))


def _back(rows: Any, parts: int) -> Any:
    """Put rows of one part behind the other's into the samples' order."""
    ops = keras.ops
    samples = ops.shape(rows)[0]
    places = ops.concatenate([ops.arange(part, samples, parts) for part in range(parts)])
    return ops.take(rows, ops.argsort(places), axis=0)


def observe(recorder: Recorder) -> None:
    """From now on, tell the recorder."""
    keras.Model.fit = _fit(keras.Model.fit, recorder)
    keras.Model.train_on_batch = _train_on_batch(keras.Model.train_on_batch, recorder)
    change(recorder.request)


@final
class LossCallback(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
    """Tells the loss after each batch: Keras's running mean of the epoch."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._recorder.before_step()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        loss = _loss(logs)
        if loss is not None:
            at_once = self.model.steps_per_execution
            self._recorder.step(loss, local=False, batches=at_once)


def _fit(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    known = signature(original)

    @wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = known.bind(self, *args, **kwargs).arguments
        recorder.saw_model(self, traits)
        samples = _samples(given.get("x"))
        if samples is not None:
            recorder.saw_dataset(samples)
        given["callbacks"] = callbacks.joined(given.get("callbacks"), [LossCallback(recorder)])
        with recorder.whole_step():
            return original(**given)

    return fit


def _train_on_batch(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    @wraps(original)
    def train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.saw_model(self, traits)
        recorder.before_step()
        with recorder.whole_step():
            logs = original(self, *args, **kwargs)
        told = logs if isinstance(logs, Mapping) else {"loss": private.tree.flatten(logs)[0]}
        recorder.step(_loss(told), local=False)
        return logs

    return train_on_batch


def _loss(logs: Mapping[str, Any] | None) -> Any:
    """Return the loss among a batch's logs, else what a step of the user's own tells first."""
    if not logs:
        return None
    value = logs["loss"] if "loss" in logs else next(iter(logs.values()))
    return float(keras.ops.convert_to_numpy(value))


def _samples(x: Any) -> int | None:
    """Return how many samples a call of fit is given, where that is known before."""
    if isinstance(x, private_data.DataAdapter):
        source = getattr(x, "_source", None)
        samples: int | None = getattr(source, "samples", None)
        return samples
    first = next(iter(private.tree.flatten(x)), None)
    shape = getattr(first, "shape", None)
    return int(shape[0]) if shape else None
