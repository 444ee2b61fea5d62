"""What `dream verify` sees of Keras's own loops: every batch's loss, as their logs tell it.
Changed once, for the life of a process that is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any, final

import keras

from dream.adapters.keras import callbacks, private
from dream.adapters.keras.tools.verify import changing
from dream.adapters.keras.tools.verify.traits import traits
from dream.tools.recording.recorder import Recorder


def observe(recorder: Recorder) -> None:
    """From now on, tell the recorder."""
    keras.Model.fit = _fit(keras.Model.fit, recorder)
    keras.Model.train_on_batch = _train_on_batch(keras.Model.train_on_batch, recorder)
    changing.change(recorder.request)


@final
class Losses(keras.callbacks.Callback):  # type: ignore[misc]  # Keras is untyped
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
        given["callbacks"] = callbacks.joined(given.get("callbacks"), [Losses(recorder)])
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
    """The loss among a batch's logs, else what a step of the user's own tells first."""
    if not logs:
        return None
    value = logs["loss"] if "loss" in logs else next(iter(logs.values()))
    return float(keras.ops.convert_to_numpy(value))


def _samples(x: Any) -> int | None:
    """How many samples a call of fit is given, where that is known before."""
    if isinstance(x, private.DataAdapter):
        source = getattr(x, "_source", None)
        samples: int | None = getattr(source, "samples", None)
        return samples
    first = next(iter(private.tree.flatten(x)), None)
    shape = getattr(first, "shape", None)
    return int(shape[0]) if shape else None
