"""What Keras's models, optimizers and generators hold, whole and under names that a fresh process
finds again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final
from weakref import WeakKeyDictionary

import keras
import numpy as np
from numpy.typing import NDArray

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.keras import private
from dream.adapters.keras.checkpoint import names
from dream.adapters.keras.checkpoint.private import numbers_of, slots_of
from dream.adapters.keras.engine import Engine
from dream.checkpoint import layers, replicas
from dream.checkpoint.checkpointer import Checkpointer, Named, Parts
from dream.checkpoint.content import (
    Arrays,
    CheckpointContent,
    OptimizerState,
    Replicas,
    check_kind,
    check_names,
    named_in,
)
from dream.checkpoint.storage.allotment import Wanted, every_array
from dream.checkpoint.storage.array_files import check_arrays
from dream.data import generators

_SCALE = "loss_scale"
_TURNING = (keras.layers.Flatten, keras.layers.Reshape)
"""Layers whose calls say in which order the features of the next lie."""
_described: WeakKeyDictionary[Any, layers.Plain] = WeakKeyDictionary()
_SEEDS, _SHARED = "keras", "!shared"


@final
class KerasCheckpointer(Checkpointer):
    """Variables that lie in parts read as wholes, which all ranks do together, in one order."""

    api = "keras"

    def __init__(self, engine: Engine, alone: replicas.Replicas | None = None) -> None:
        """alone: replicas that have each a state of their own; None where ranks are alike."""
        if engine.mixed:
            raise Unsupported(
                "A job with two frameworks cannot write checkpoints yet. Received: Keras on "
                f"{engine.framework} among others. Save strategy.full_state(model) instead."
            )
        self._engine, self._alone = engine, alone

    def model(self, model: Any, wanted: Wanted = every_array) -> Arrays:
        _check_built(model)
        return self._wholes(names.weights(model), wanted)

    def facts(self) -> dict[str, Any]:
        own = self._engine
        ranks = own.readers.world_size
        mesh = {"data": own.parts, "model": ranks // own.parts if ranks > own.parts else 1}
        return {"mesh": mesh, "precision": own.update_options.precision}

    def types(self, model: Any) -> dict[str, str]:
        _check_built(model)
        return {name: str(v.dtype) for name, v in names.weights(model).items()}

    def check_model(self, model: Any, arrays: Arrays) -> None:
        _check_built(model)
        here = {name: tuple(v.shape) for name, v in names.weights(model).items()}
        check_arrays("weights", arrays, here)

    def set_model(self, model: Any, arrays: Arrays) -> None:
        for name, variable in names.weights(model).items():
            variable.assign(arrays[name])

    def describe(self, model: Any) -> layers.Plain:
        return described(model)

    def optimizer(
        self, optimizer: Any, models: Named, wanted: Wanted = every_array
    ) -> OptimizerState:
        inner = _inner(optimizer)
        arrays = self._wholes(self._states(optimizer, models), wanted)
        called = {id(v): name for name, v in _variables(models).items()}
        trained = private.known_to(inner)
        group = {"params": [called[id(v)] for v in trained], **_read(numbers_of(inner))}
        if inner is not optimizer:
            group[_SCALE] = _read(numbers_of(optimizer))
        return OptimizerState(type(inner).__name__, arrays, groups=[group])

    def _states(self, optimizer: Any, models: Named) -> dict[str, Any]:
        """Return an optimizer's variables by PARAMETER/SLOT."""
        inner = _inner(optimizer)
        if not optimizer.built:
            self._build(optimizer, [v for m in models.values() for v in m.trainable_variables])
        called = {id(v): name for name, v in _variables(models).items()}
        _check_known(private.known_to(inner), called)
        return {
            f"{called[id(variable)]}/{slot}": state
            for slot, pairs in slots_of(inner).items()
            for variable, state in pairs
        }

    def replicas(self, parts: Parts, wanted: Wanted) -> Replicas | None:
        if self._alone is None:
            return None
        held: dict[str, Any] = {}
        for key, model in parts.models.items():
            own = names.weights(model)
            held |= {f"model/{named_in(key, name)}": np.array(v) for name, v in own.items()}
        for key, optimizer in parts.optimizers.items():
            states = self._states(optimizer, parts.models)
            held |= {f"optimizer/{named_in(key, n)}": np.array(v) for n, v in states.items()}
        return replicas.kept(self._alone, held, np.array, self.random(parts.models), wanted)

    def own_of(self, found: CheckpointContent) -> CheckpointContent:
        own = None if self._alone is None else replicas.own_of(self._alone, found)
        return super().own_of(found) if own is None else own

    def set_replicas(self, found: CheckpointContent, parts: Parts) -> None:
        alone, saved = self._alone, found.replicas
        if alone is not None and saved is not None and saved.count == alone.ranks.world_size:
            replicas.go_on(alone, saved, np.asarray)

    def check_optimizer(self, optimizer: Any, models: Named, state: OptimizerState) -> None:
        inner, variables = _inner(optimizer), _variables(models)
        check_kind(state.kind, type(inner).__name__)
        saved = [name for group in state.groups for name in group["params"]]
        if not optimizer.built:
            check_names("optimized parameters", saved, [n for n in saved if n in variables])
            self._build(optimizer, [variables[name] for name in saved])
        called = {id(v): name for name, v in variables.items()}
        trained = private.known_to(inner)
        _check_known(trained, called)
        check_names("optimized parameters", saved, [called[id(v)] for v in trained])
        here = {
            f"{called[id(variable)]}/{slot}": tuple(kept.shape)
            for slot, pairs in slots_of(inner).items()
            for variable, kept in pairs
        }
        check_arrays("optimizer states", state.arrays, here)

    def set_optimizer(self, optimizer: Any, models: Named, state: OptimizerState) -> None:
        inner, variables = _inner(optimizer), _variables(models)
        group = dict(state.groups[0])
        called = {id(v): name for name, v in variables.items()}
        for slot, pairs in slots_of(inner).items():
            for variable, kept in pairs:
                kept.assign(state.arrays[f"{called[id(variable)]}/{slot}"])
        scale = group.pop(_SCALE, None)
        _write(numbers_of(inner), group)
        if inner is not optimizer and scale is not None:
            _write(numbers_of(optimizer), scale)

    def random(self, models: Named) -> dict[str, Any]:
        seeds = {name: np.array(v).tolist() for name, v in _seeds(models).items()}
        own = self._engine.generators
        state = own.state()
        framework = {} if state is None else {own.name: state}
        return {**generators.state(), **framework, _SEEDS: seeds}

    def set_random(self, state: Mapping[str, Any], models: Named) -> None:
        generators.restore(state)
        own = self._engine.generators
        if own.name in state:
            own.restore(state[own.name])
        saved, here = dict(state.get(_SEEDS, {})), _seeds(models)
        if _SEEDS in state and saved.keys() - {_SHARED} != here.keys() - {_SHARED}:
            logger.info(
                "the checkpoint's model draws random numbers in other layers than this one, which "
                "begin at their own seeds: %s", ", ".join(sorted(saved.keys() ^ here.keys())),
            )  # fmt: skip
        for name, variable in here.items():
            if name in saved:
                variable.assign(np.asarray(saved[name], str(variable.dtype)))

    def _wholes(self, variables: Mapping[str, Any], wanted: Wanted) -> dict[str, NDArray[Any]]:
        """Return copies of those that are wanted. Every rank takes part in making each whole."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, variable in variables.items():
            whole = np.array(variable) if self._alone is None else self._alone.together(variable)
            if wanted(name, whole.nbytes):
                arrays[name] = whole
        return arrays

    def _build(self, optimizer: Any, variables: list[Any]) -> None:
        with self._engine.creating():
            optimizer.build(variables)


def _inner(optimizer: Any) -> Any:
    """Return the optimizer within one that scales losses."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _variables(models: Named) -> dict[str, Any]:
    return {
        named_in(key, name): variable
        for key, model in models.items()
        for name, variable in names.weights(model).items()
    }


def _seeds(models: Named) -> dict[str, Any]:
    found = {
        named_in(key, name): state
        for key, model in models.items()
        for name, state in names.seeds(model).items()
    }
    shared = private.shared_seed()
    return found if shared is None else {**found, _SHARED: shared.state}


def _read(variables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.array(variable).tolist() for name, variable in variables.items()}


def _write(variables: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, variable in variables.items():
        if name in values:
            variable.assign(np.asarray(values[name], str(variable.dtype)))


def _check_built(model: Any) -> None:
    if not model.built:
        raise ConfigurationError(
            f"The model has no variables yet. Received: {model.name!r}, not built. Give it an "
            "Input layer, or call it on a batch first."
        )


def _check_known(trained: list[Any], called: Mapping[int, str]) -> None:
    unknown = [v.path for v in trained if id(v) not in called]
    if unknown:
        raise ConfigurationError(
            "An optimizer's state is kept by the names of its model's variables. Received: "
            f"{unknown[0]!r}, which no model here has. Give every model that the optimizer "
            "trains, as a dict of names where there are several."
        )


def described(model: Any) -> layers.Plain:
    """Return a model's layers in words of every framework."""
    # on use: it stands on hooks, and hooks on fit, which saves
    from dream.adapters.keras.model_description import model as description

    if model not in _described:
        called = {id(variable): name for name, variable in names.weights(model).items()}
        own = {name: called[id(v)] for name, v in description.variables(model).items()}
        flattens = any(isinstance(each, _TURNING) for each in private.layers_of(model))
        found = description.describe(model) if flattens else description.description(
            model, (), in_order=False)  # fmt: skip
        _described[model] = layers.to_plain(found, own)
    return _described[model]
