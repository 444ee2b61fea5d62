"""Keras's private names that checkpoints need. Read off Keras 3.15, and held by
tests/adapters/keras/test_keras_private.py."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MethodType
from typing import Any

import keras
from keras.src.utils.naming import to_snake_case

from dream.adapters.keras import private
from dream.files.whole import write_whole


def automatic_name(layer: Any) -> str:
    """Return the name, without a number, that Keras gives a layer which was given none."""
    return str(to_snake_case(type(layer).__name__))


def slots_of(optimizer: Any) -> dict[str, list[tuple[Any, Any]]]:
    """Return by slot (variable, state) of each variable that an optimizer keeps one for."""
    trained = private.known_to(optimizer)
    found: dict[str, list[tuple[Any, Any]]] = {}
    for name, value in vars(optimizer).items():
        states = list(value) if isinstance(value, (list, tuple)) else []
        of_each = len(states) == len(trained) and all(_is_state(s) for s in states)
        if of_each and not any(s is v for s, v in zip(states, trained, strict=True)):
            pairs = [(v, s) for v, s in zip(trained, states, strict=True) if s is not None]
            if pairs and name not in _OF_KERAS:
                found[_slot_name(*pairs[0], name)] = pairs
    return found


_OF_KERAS = ("_variables", "_trainable_variables")


def _is_state(value: Any) -> bool:
    return value is None or isinstance(value, keras.Variable)


def _slot_name(variable: Any, state: Any, attribute: str) -> str:
    """Return `momentum` for a state that Keras calls `dense_kernel_momentum`."""
    own = variable.path.replace("/", "_") + "_"
    return state.name.removeprefix(own) if state.name.startswith(own) else attribute.strip("_")


def numbers_of(optimizer: Any) -> dict[str, Any]:
    """Return by name the variables of an optimizer that belong to none that it trains."""
    slots = {id(state) for pairs in slots_of(optimizer).values() for _, state in pairs}
    inner = getattr(optimizer, "inner_optimizer", None)
    slots |= {id(v) for v in inner.variables} if inner is not None else set()
    found: dict[str, Any] = {}
    for variable in optimizer.variables:
        if id(variable) not in slots:
            name = variable.name
            found[f"{name}_{len(found)}" if name in found else name] = variable
    return found


_BACKUP_KEY = "dream"


def backup_with(backup: Any, state: Callable[[], Mapping[str, Any] | None], fit_epoch: str) -> None:
    """Have a BackupAndRestore keep `state()` with the weights, and its epoch as the one to go on
    in. Keras keeps the batch too, but begins the epoch again."""

    def save(self: Any) -> None:
        type(self)._save_model(self)
        place, kept = Path(self._training_metadata_path), state()
        if kept is None:
            return
        said = json.loads(place.read_text(encoding="utf-8"))
        text = json.dumps({**said, "epoch": kept[fit_epoch], _BACKUP_KEY: dict(kept)})
        write_whole(place, lambda file: file.write(text.encode()))

    backup._save_model = MethodType(save, backup)


def kept_with(backup: Any) -> dict[str, Any] | None:
    """Return what was kept with the weights that a BackupAndRestore has loaded; None for
    nothing."""
    place = Path(backup._training_metadata_path)
    if not place.exists():
        return None
    said: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return said.get(_BACKUP_KEY)
