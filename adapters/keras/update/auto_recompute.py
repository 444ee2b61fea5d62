"""`recompute="auto"`: which parts of a Keras model are computed again in backward follows what a
step's activations may take. Parts are layers at any depth, and runs of them. A backend measures a
training call of the model; the choice is made once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras
from keras import tree

from dream._patches import value_set
from dream.adapters.keras import private
from dream.adapters.keras.update import private as graphs
from dream.adapters.keras.update.runs import Run, whole

Call = Callable[..., Any]
Recomputed = Callable[[Sequence[Any], Call], Call]
"""Of layers, and a call that they take part in, the call that is computed again."""


class Chooser(ABC):
    """Chooses the parts of one model, when it is what a step calls.

    parts: layers and runs in it, each a block by its place here. chosen: places of those that are
    computed again; None until that is known.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        layers = [each for each in private.layers_of(model) if each is not model]
        wholes = [vars(each).get(_RUN) for each in (model, *layers)]
        runs = [run for each in wholes if each is not None for run in each.runs()]
        self.parts: list[Any] = [*layers, *runs]
        self.chosen: frozenset[int] | None = None
        self._places = {id(part): place for place, part in enumerate(self.parts)}

    @abstractmethod
    def trains(self, training: Any) -> bool:
        """Whether a call of the model is one of a training step, where Keras says `training`."""

    @abstractmethod
    def whole(self, call: Call, args: Any, kwargs: Any) -> Any:
        """Make a training call of the model, which may be measured."""

    @abstractmethod
    def measured(self, place: int, call: Call, args: Any, kwargs: Any) -> Any:
        """Make a part's call while nothing is chosen yet."""

    @abstractmethod
    def keep(self) -> None:
        """Note that the part which is being called cannot be computed again."""

    def open(self) -> AbstractContextManager[None]:
        """Inside, calls of layers are those of a call of the model."""
        return value_set(_within, self)

    def part(self, part: Any, call: Call, again: Call, args: Any, kwargs: Any) -> Any:
        """Make a part's call within one of the model. again: the same, computed again later."""
        place = self._places.get(id(part))
        if place is None:
            return call(*args, **kwargs)
        if self.chosen is None:
            own = self._unmasked(call) if isinstance(part, Run) else call
            return self.measured(place, own, args, kwargs)
        return (again if place in self.chosen else call)(*args, **kwargs)

    def _unmasked(self, call: Call) -> Call:
        """A mask, which tensors carry, does not pass the ends of a run that is computed again."""

        def called(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            if any(private.mask_of(x) is not None for x in tree.flatten((args, result))):
                self.keep()
            return result

        return called


_within: ContextVar[Chooser | None] = ContextVar("dream.recompute_within", default=None)


def adopt(model: Any, make: Callable[[Any], Chooser], recomputed: Recomputed) -> None:
    """Have a built model's parts follow what is chosen, where the model is what a step calls.
    make: its chooser."""
    if _CHOOSER in vars(model):
        return
    for layer in private.layers_of(model):
        if not isinstance(layer, keras.layers.InputLayer) and not hasattr(layer, _FOLLOWS):
            object.__setattr__(layer, _FOLLOWS, True)
            graphs.wrap_call(layer, partial(_following, layer, recomputed))
    object.__setattr__(model, _CHOOSER, make(model))


_FOLLOWS, _RUN = "dream_recompute_follows", "dream_recompute_run"
_CHOOSER = "dream_recompute_chooser"
"""Kept on the layers: what knows a model, and lies elsewhere, keeps it in memory."""


def _following(layer: Any, recomputed: Recomputed, call: Call) -> Call:
    again = recomputed([layer], call)
    graph = graphs.graph_of(layer)
    run = None if graph is None else whole(graph)
    if run is not None:
        object.__setattr__(layer, _RUN, run)
        call = _in_runs(layer, graph, run, recomputed, call)

    def followed(*args: Any, **kwargs: Any) -> Any:
        outer = _within.get()
        if outer is not None:
            return outer.part(layer, call, again, args, kwargs)
        chooser: Chooser | None = vars(layer).get(_CHOOSER)
        training = kwargs.get("training", None if private.knows_training(layer) else True)
        rehearsed = private.is_rehearsal(tree.flatten((args, kwargs)))
        if chooser is None or rehearsed or not chooser.trains(training):
            return call(*args, **kwargs)
        with chooser.open():
            return chooser.whole(call, args, kwargs)

    return followed


def _in_runs(model: Any, graph: Any, run: Run, recomputed: Recomputed, call: Call) -> Call:
    """Return what makes a model's call run by run, where its parts follow what is chosen."""

    def through(part: Run, *given: Any, training: Any = None) -> list[Any]:
        values = part.values(dict(zip(part.needs, given, strict=True)), training, follow)
        return [values[place] for place in part.gives]

    calls = {part: partial(through, part) for part in run.runs()}
    again = {part: recomputed(part.layers, own) for part, own in calls.items()}

    def follow(part: Run, given: list[Any], training: Any) -> Sequence[Any]:
        outer = _within.get()
        if outer is None:
            return calls[part](*given, training=training)
        named = {"training": training}
        found: Sequence[Any] = outer.part(part, calls[part], again[part], given, named)
        return found

    def called(inputs: Any, training: Any = None, mask: Any = None, **kwargs: Any) -> Any:
        if _within.get() is None or kwargs:
            return call(inputs, training=training, mask=mask, **kwargs)
        flat = private.flat_inputs(model, inputs)
        graphs.set_masks(flat, mask)
        values = run.values(dict(zip(map(id, graph.inputs), flat, strict=True)), training, follow)
        return graphs.packed(graph, [values[id(x)] for x in graph.outputs])

    return called
