"""Names of a model's variables that a fresh process finds again.

Keras counts the names of layers through a process, and puts the model's own before them:
`sequential_3/dense_7/kernel`. Here a layer that nobody named is counted in the layer that it lies
in: `dense/kernel`, then `dense_1/kernel`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dream.adapters.keras import private
from dream.adapters.keras.checkpoint.private import automatic_name
from dream.adapters.keras.model_description.layers import own_variables


def weights(model: Any) -> dict[str, Any]:
    """Return the weights by name, each once, in the order of their layers."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for path, layer in _walk(model, "", set()):
        for name, variable in own_variables(layer):
            if id(variable) not in seen:
                seen.add(id(variable))
                found[_free(f"{path}{name}", found)] = variable
    return found


def seeds(model: Any) -> dict[str, Any]:
    """Return the states of the seed generators in a model by name."""
    found: dict[str, Any] = {}
    for path, layer in _walk(model, "", set()):
        for generator in private.own_seeds(layer):
            found[_free(f"{path}seed", found)] = generator.state
    return found


def _walk(layer: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield (what goes before its variables' names, layer), each layer once, outer ones first."""
    seen.add(id(layer))
    yield path, layer
    taken: set[str] = set()
    for child in private.children(layer):
        name = _free(_unnumbered(child), taken)
        taken.add(name)
        if id(child) not in seen:
            yield from _walk(child, f"{path}{name}/", seen)


def _unnumbered(layer: Any) -> str:
    """Return a layer's name without the number that Keras gave it; a name of the user's stays."""
    own = automatic_name(layer)
    counted = re.fullmatch(rf"((?:forward_|backward_)?{re.escape(own)})_\d+", layer.name)
    return counted[1] if counted else str(layer.name)


def _free(name: str, taken: Any) -> str:
    """Return the name, numbered where it is taken."""
    free, count = name, 0
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    return free
