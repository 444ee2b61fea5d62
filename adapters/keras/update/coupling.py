"""Calls that couple the samples of a batch: those of a part have other outputs, or gradients, than
within the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
from keras import tree

from dream.adapters.keras import hooks, kinds, private
from dream.adapters.keras.engine import Array, Engine
from dream.adapters.keras.update import trial
from dream.strategies import registry

_REMEDIES = {
    "output": "Normalise by keras.layers.BatchNormalization, which sees the whole batch, or by the "
    "sample alone",
    "gradient": "Clip or normalise each sample's gradient by itself, or have the optimizer clip "
    "(clipnorm=)",
}

_JOINED: dict[str, Callable[[Array, Array], Array]] = {
    "output": lambda first, second: np.concatenate([first, second]),
    "gradient": lambda first, second: first + second,
}
"""What two parts' values come to."""

COUPLES, DRAWS = "couples", "draws"
_AUGMENTING = "keras.src.layers.preprocessing.image_preprocessing"
_answers: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Of models: what they do with the samples that they are asked about."""


def check(model: Any, engine: Engine, inputs: Any) -> bool:
    """Say of a model whose call is not made of Keras's layers alone if it couples samples; whether
    it does. Layers of Keras's that augment are tried for what they draw. inputs: or
    KerasTensors."""
    if not (private.has_call(model) and (private.has_own_parts(model) or _may_couple(model))):
        return False
    made_up = trial.widened((kinds.made_up(inputs, classes=2),))
    tries = (made_up, _large), (kinds.uneven(made_up), kinds.uneven)
    told = (_coupled(model, engine, *each) for each in tries)
    what = next(filter(None, told), "")
    if what:
        say_coupled(model, engine, what)
    return bool(what)


def _may_couple(model: Any) -> bool:
    """Whether layers of Keras's may draw numbers for all samples, so many of them, as RandAugment
    does for its operations; or go along the samples, as a normalisation by axis 0 does."""
    return any(
        type(layer).__module__.startswith(_AUGMENTING) or 0 in _axes_of(layer)
        for layer in private.layers_of(model)
    )


def _axes_of(layer: Any) -> list[int]:
    """Return the axes that a layer goes along, counted from the first where inputs are known."""
    axes = [each for each in tree.flatten(getattr(layer, "axis", None)) if type(each) is int]
    try:
        dims = len(layer.input.shape)
    except (AttributeError, ValueError, TypeError):
        return axes  # of several inputs, or none yet
    return [each + dims if each < 0 else each for each in axes]


def answers(model: Any, engine: Engine, inputs: Any) -> str:
    """COUPLES where a model, out of training, gives a sample another output in a part of its batch,
    DRAWS where it draws random numbers, else ""; found out once it is built. inputs: or their
    shapes and dtypes."""
    own = private.has_own_parts(model) or type(model).predict_step is not keras.Model.predict_step
    if not (model.built and private.has_call(model) and own):
        return ""
    if model not in _answers:
        found = _answered(model, engine, inputs)
        if found is None:
            return ""
        _answers[model] = found
    return _answers[model]


def _answered(model: Any, engine: Engine, inputs: Any) -> str | None:
    """None where the model takes nothing that is made up."""

    def call(rows: slice) -> list[Array]:
        def run(part: Any) -> list[Array]:
            found = type(model).predict_step(model, part)
            return [trial.array(x) for x in tree.flatten(found)]

        with hooks.drawn_for(None):
            return trial.take(model, engine, made_up, rows, run)

    try:
        made_up = trial.widened((kinds.made_up(inputs, classes=2),))
        whole, again, first, second = map(call, (slice(None), slice(None), *trial.PARTS))
    except Exception:
        return None
    joined = [_joined(a, b) for a, b in zip(first, second, strict=True)]
    drew = trial.drawn_by_trials(model).drew()
    if not all(trial.is_close(a, b) for a, b in zip(whole, again, strict=True)):
        return DRAWS if drew else ""  # or gives what is no number
    alike = all(
        b is not None and a.shape == b.shape and trial.is_close(a, b)
        for a, b in zip(whole, joined, strict=True)
    )
    return (DRAWS if drew else "") if alike else COUPLES


def _joined(one: Array, other: Array) -> Array | None:
    """Return the rows of both, None where they have other sizes."""
    return np.concatenate([one, other]) if one.shape[1:] == other.shape[1:] else None


def say_coupled(model: Any, engine: Engine, what: str = "output") -> None:
    """Say that a sample's output, or gradient, hangs on the others of its batch."""
    trial.say(
        f"The call of {model.name!r} gives a sample another {what} in a part of its batch: it "
        "couples the samples, which replicas share. Received: layers or operations in which a "
        f"sample's {what} hangs on the others, such as a mean or a norm over the batch. "
        f"{_REMEDIES[what]}", engine,
    )  # fmt: skip


def _large(gradients: Sequence[Array]) -> list[Array]:
    """Have a norm of all rows, and of each part's, be larger than what clips by one allows."""
    return [1000.0 * x for x in gradients]


def _coupled(model: Any, engine: Engine, batch: Any, stretch: Callable[[Any], Any]) -> str:
    """What a part of a batch has otherwise, "output" or "gradient"; "" for nothing, and where that
    cannot be found out. stretch: what becomes of the gradients by its outputs."""
    differentiate = registry.load(registry.GRADIENTS[keras.backend.backend()])

    def by_outputs(rows: slice, outputs: Sequence[Array]) -> list[Array]:
        draw = np.random.default_rng(1)
        whole = [draw.uniform(-1, 1, (kinds.ROWS, *x.shape[1:])) for x in outputs]
        return [x[rows].astype("float32") for x in stretch(whole)]

    def call(rows: slice, batch: Any) -> tuple[list[Array], list[Array]]:
        outputs: list[Array] = []

        def seen(found: Sequence[Array]) -> list[Array]:
            outputs[:] = found
            return by_outputs(rows, found)

        def run(part: tuple[Any]) -> list[Array]:
            given = partial(model, *part, training=True)
            variables = model.trainable_variables
            found = differentiate(lambda: tree.flatten(given()), variables, seen)
            return [np.zeros(()) if g is None else g for g in found]

        return outputs, trial.take(model, engine, batch, rows, run)

    def take(batch: Any) -> list[tuple[list[Array], list[Array]]]:
        return [call(rows, batch) for rows in (slice(None), *trial.PARTS)]

    try:
        found, (again, _) = take(batch), call(slice(None), batch)
        draws = any(not np.array_equal(a, b) for a, b in zip(found[0][0], again, strict=True))
        if draws or not all(np.isfinite(x).all() for each in found for x in (*each[0], *each[1])):
            return ""
        for place, (what, join) in enumerate(_JOINED.items()):
            whole, first, second = (each[place] for each in found)
            by_parts = [join(a, b) for a, b in zip(first, second, strict=True)]
            if not trial.are_close(whole, by_parts):
                near = [each[place] for each in take(trial.nudged(batch))]
                if trial.are_steady([whole, first, second], near):
                    return what
    except Exception:
        pass  # it takes nothing that is made up
    return ""
