"""Compare a model with its port: two processes, one batch. `dream.port_check` begins here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike

from dream._errors import ConfigurationError, unknown
from dream.strategies.spec import FRAMEWORKS
from dream.tools import user_code
from dream.tools.model_process import ModelProcess, open_process
from dream.tools.port_check import worker
from dream.tools.port_check.judge import judge, same_order
from dream.tools.port_check.match import Pair, match, order_kept
from dream.tools.port_check.probe import Array, Facts, Inputs, ModelSide, Weights
from dream.tools.port_check.verdict import PortReport


def shaken(weights: Mapping[str, Mapping[str, Array]], seed: int) -> tuple[Weights, list[str]]:
    """Return the weights with those changed, and which these are, as "layer role"."""
    draws = np.random.default_rng(seed)
    changed: list[str] = []
    result: Weights = {}
    for layer, roles in weights.items():
        result[layer] = {}
        for role, value in roles.items():
            constant = value.size > 1 and bool(np.all(value == value.flat[0]))
            result[layer][role] = _drawn(value, draws) if constant else value
            if constant:
                changed.append(f"{layer} {role}")
    return result, changed


def _drawn(value: Array, draws: np.random.Generator) -> Array:
    """Near what was there, of the same sign: a variance stays positive."""
    noise = draws.uniform(-0.5, 0.5, value.shape)
    centre = float(value.flat[0])
    return np.asarray(noise if centre == 0 else centre * (1 + noise), value.dtype)


def read_batch(path: Path) -> dict[str, Array]:
    """Read the arrays of a .npz file."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError, AttributeError, BadZipFile) as error:
        raise ConfigurationError(
            f"The batch must be a .npz file of arrays. Received: --batch {path} ({error}). Write "
            "one with numpy.savez(path, x=..., y=...)."
        ) from error


def read_mapping(path: Path | None) -> dict[str, str] | None:
    """Read the names of a JSON file."""
    if path is None:
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _bad_map(path, str(error)) from error
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise _bad_map(path, "not an object of strings")
    return found


def _bad_map(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f'The map must be a JSON file. Received: --map {path} ({why}). Write {{"old name": "new '
        'name", ...} into it.'
    )


def port_check(
    old: str | Callable[[], Any],
    new: str | Callable[[], Any],
    batch: Mapping[str, ArrayLike],
    *,
    map: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    loss: str = "mean_squared",
    seed: int = 0,
    as_is: bool = False,
    copy: bool = True,
    shake: bool = True,
    old_backend: str | None = None,
    new_backend: str | None = None,
    timeout: float = 300.0,
) -> PortReport:
    """Return whether two models, given the same weights, give the same outputs and the same
    gradients.

    old, new: build the models, each in a process of its own and of either framework:
        "file.py:function", "module:function", or the function itself. A function of a script
        runs that script up to its `if __name__ == "__main__":`.
    batch: `x` (or `x0`, `x1`, ... by position, or the models' own names) and perhaps `y`. Arrays
        of four or more dims have their channels last and are turned for a model that has them in
        axis 1, as are those of three dims where the model begins with a Conv1d; as_is: none is.
    map: old name -> new name, of layers or parameters; the rest is matched by the order of calls.
    tolerance: relative, for everything; else 32 roundings of the dtype, times the root of the
        number of layers passed.
    loss: "mean_squared", against y or targets that `seed` draws, or "cross_entropy" of logits
        against class numbers y.
    copy: the new model gets the old one's weights; False: it keeps its own, and they are compared.
    shake: what is all one number in the old model, as fresh biases and statistics are, gets
        others that `seed` draws, in both models, since zeros hide what is done with them.
    old_backend, new_backend: Keras's, else KERAS_BACKEND. timeout: seconds for one answer.
    Raises ConfigurationError where the layers do not match, Unsupported for a layer whose
    parameters no other framework can have, and WorkerFailed where a model cannot be built or run.
    """

    request = PortCheckRequest.made(
        old, new, batch, mapping=map, tolerance=tolerance, loss=loss, seed=seed, as_is=as_is,
        copy=copy, shake=shake,
    )  # fmt: skip
    return run(request, (old_backend, new_backend), timeout)


Model = str | Callable[[], Any]


@final
@dataclass(frozen=True, slots=True)
class PortCheckRequest:
    """A comparison that is asked for; `dream.port_check` says what the fields mean."""

    old: str
    new: str
    batch: Mapping[str, Array]
    mapping: Mapping[str, str] | None = None
    tolerance: float | None = None
    loss: str = "mean_squared"
    seed: int = 0
    as_is: bool = False
    copy: bool = True
    shake: bool = True

    def __post_init__(self) -> None:
        for place in (self.old, self.new):
            user_code.check_place(place)
        if not self.inputs:
            raise ConfigurationError(
                "The batch has no inputs for the models. Received: a batch with "
                f"{', '.join(self.batch) or 'nothing'}. Name the inputs x; or x0, x1, ...; or as "
                "the models name them. y is the target."
            )
        if self.tolerance is not None and not self.tolerance >= 0:
            raise ConfigurationError(
                f"The tolerance must not be negative. Received: {self.tolerance}. Give 1e-5, or "
                "none."
            )

    @classmethod
    def made(
        cls, old: Model, new: Model, batch: Mapping[str, ArrayLike], **options: Any
    ) -> PortCheckRequest:
        """Functions by their places, the batch as arrays."""
        arrays = {name: np.asarray(x) for name, x in batch.items()}
        return cls(user_code.place_of(old), user_code.place_of(new), arrays, **options)

    @property
    def inputs(self) -> Inputs:
        return {name: np.asarray(x) for name, x in self.batch.items() if name != "y"}

    @property
    def target(self) -> Array | None:
        return self.batch.get("y")


def run(
    request: PortCheckRequest, backends: tuple[str | None, str | None], timeout: float
) -> PortReport:
    """Compare in two processes of its own. backends: Keras's; timeout: seconds an answer."""
    for name in backends:
        if name is not None and name not in FRAMEWORKS:
            raise unknown("backend of Keras", name, FRAMEWORKS)
    sides = (("old", request.old, backends[0]), ("new", request.new, backends[1]))
    with ExitStack() as held:
        old, new = (
            held.enter_context(
                open_process(f"The {who} model ({place})", worker.__name__, place, timeout, backend)
            )
            for who, place, backend in sides
        )
        return check(request, old, new)


def check(request: PortCheckRequest, old: ModelProcess, new: ModelProcess) -> PortReport:
    """Compare in processes that are there."""
    old_facts, new_facts = _both(
        old, new, "build", (request.old, request.inputs, request.as_is),
        (request.new, request.inputs, request.as_is),
    )  # fmt: skip
    pairs = match(old_facts.description, new_facts.description, request.mapping, optional=True)
    changed: list[str] = []
    if request.copy and request.shake:
        weights, changed = shaken(old.get("weights"), request.seed)
        old.get("load", weights)
    sides = _sides(request, pairs, (old_facts, new_facts), old, new)
    kept: dict[str, str] = {}
    while names := {p.old.name: p.new.name for p in pairs if same_order(p, *sides)}:
        kept |= names
        if any(pair.old.flattened for pair in pairs if pair.old.name in names):
            old_facts = old.get("keep_order", {*kept})
        else:
            new_facts = new.get("keep_order", {*kept.values()})
        pairs = match(old_facts.description, new_facts.description, request.mapping, optional=True)
        sides = _sides(request, pairs, (old_facts, new_facts), old, new)
    found = judge(pairs, *sides, copied=request.copy, allowed=request.tolerance, shaken=changed)
    return replace(found, remarks=(*found.remarks, *map(order_kept, kept)))


def _sides(
    request: PortCheckRequest,
    pairs: Sequence[Pair],
    facts: tuple[Facts, Facts],
    old: ModelProcess,
    new: ModelProcess,
) -> tuple[ModelSide, ModelSide]:
    """Give the new model the old one's weights, if asked to, and run both."""
    weights: Weights = old.get("weights")
    if request.copy:
        new.get("load", {pair.new.name: weights[pair.old.name] for pair in pairs})
    asked = (request.loss, request.target, request.seed)
    old_passes, new_passes = _both(old, new, "passes", asked, asked)
    own = {} if request.copy else new.get("weights")
    return ModelSide(facts[0], old_passes, weights), ModelSide(facts[1], new_passes, own)


def _both(
    old: ModelProcess, new: ModelProcess, name: str, first: tuple[Any, ...], second: tuple[Any, ...]
) -> tuple[Any, Any]:
    """At once in both processes."""
    old.ask(name, *first)
    new.ask(name, *second)
    try:
        found = old.answer()
    finally:
        other = new.answer()  # read whatever came of the first: the next question's is not this
    return found, other
