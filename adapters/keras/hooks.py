"""All that is changed of Keras: the classes and functions that a block replaces and puts back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, final

import keras

from dream import _patches
from dream._patches import Patches
from dream.adapters.keras import private
from dream.adapters.keras.checkpoint import model_files
from dream.adapters.keras.randomness.draws import ShareRows, drawn_by, global_forms, noting_stacks
from dream.adapters.keras.update.private import losses_by_thread, narrower_types
from dream.stall.phases import Phase, PhaseRule

_SOURCE = Path(keras.__file__).parent / "src"
_TRAINERS = [
    str(_SOURCE / "backend" / backend / "trainer.py") for backend in ("tensorflow", "torch")
]

PHASE_RULES = (
    *(PhaseRule(trainer, Phase.EVALUATION, ("evaluate", "predict")) for trainer in _TRAINERS),
    PhaseRule(f"{_SOURCE / 'trainers' / 'data_adapters'}/", Phase.INPUT),
    PhaseRule(str(_SOURCE / "trainers" / "epoch_iterator.py"), Phase.INPUT, ("_get_iterator",)),
    PhaseRule(f"{_SOURCE / 'layers'}/", Phase.FORWARD, ("__call__",)),
    PhaseRule(f"{_SOURCE / 'optimizers'}/", Phase.OPTIMIZER, ("apply", "apply_gradients")),
    PhaseRule(f"{_SOURCE / 'saving'}/", Phase.WRITING,
              ("save_model", "save_weights", "save_weights_only")),
    PhaseRule(f"{_SOURCE / 'saving'}/", Phase.LOADING,
              ("load_model", "load_weights", "load_weights_only")),
)  # fmt: skip


_WRITERS = (
    (keras.models, "save_model"),
    (keras.saving, "save_model"),
    (keras.saving, "save_weights"),
)
_READERS = (
    (keras.models, "load_model"),
    (keras.saving, "load_model"),
    (keras.saving, "load_weights"),
)
_Wrap = Callable[[Callable[..., Any], str], Callable[..., Any]]


def on_created(patches: Patches, owner: type[Any], take: Callable[[Any], Any]) -> None:
    """Have `take` called on each instance of the class, once it is made."""
    init = owner.__init__

    @wraps(init)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        take(self)

    patches.replace(owner, "__init__", wrapped)


def wrap_files(patches: Patches, writing: _Wrap, reading: _Wrap) -> None:
    """Have models saved by `writing(save, name)` in the place of Keras's own `save`, and read by
    `reading(load, name)`."""
    for wrap, functions in ((writing, _WRITERS), (reading, _READERS)):
        for module, name in functions:
            patches.replace(module, name, wrap(getattr(module, name), name))


def take_made(
    patches: Patches,
    model: Callable[[Any], Any],
    optimizer: Callable[[Any], Any],
    writing: _Wrap = model_files.writing,
) -> None:
    """Have `model` and `optimizer` called on each that is made, and models saved by `writing`."""
    on_created(patches, keras.Model, model)
    on_created(patches, keras.optimizers.Optimizer, optimizer)
    wrap_files(patches, writing, model_files.reading)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute of Keras's is `value`."""
    with Patches() as patches:
        patches.replace(owner, name, value)
        yield


_FIRST: tuple[tuple[type[Any], str], ...] = (
    (keras.Model, "__init__"),
    (keras.Layer, "__init__"),
    (keras.Layer, "__call__"),
    (keras.optimizers.Optimizer, "__init__"),
    *((keras.Model, name) for name in ("fit", "evaluate", "predict", "train_on_batch")),
)
"""What a script of Keras's cannot do without."""


def first_use(found: Callable[[], None]) -> Callable[[], None]:
    """Have `found` called before the first layer, model or optimizer is made or used. Returns
    what ends that."""
    return _patches.first_use(_FIRST, found)


@final
class _Shared:
    """Replacements that are there while anybody is inside: replicas' steps are traced by turns,
    each in a thread. put: makes them."""

    def __init__(self, put: Callable[[Patches], None]) -> None:
        self._put, self._patches = put, Patches()
        self._turning, self._depth = threading.Lock(), 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._turning:
            self._depth += 1
            if self._depth == 1:
                self._put(self._patches)
        try:
            yield
        finally:
            with self._turning:
                self._depth -= 1
                if self._depth == 0:
                    self._patches.restore()


def _unscale(patches: Patches) -> None:
    for module, name in private.loss_scaling():
        patches.replace(module, name, lambda value: value)
    patches.replace(keras.Layer, *losses_by_thread())


def _draw_globally(patches: Patches) -> None:
    for name, form in global_forms(private.backend_random).items():
        patches.replace(private.backend_random, name, form)
    stacking = private.backend_numpy
    patches.replace(stacking, "concatenate", noting_stacks(stacking.concatenate))


_unscaled, _drawn = _Shared(_unscale), _Shared(_draw_globally)


def unscaled_losses() -> AbstractContextManager[None]:
    """Inside, a replica's loss is the mean over its own samples: Keras does not divide it by the
    number of replicas, and what layers add to it is that replica's."""
    return _unscaled.inside()


@contextmanager
def drawn_for(rows: ShareRows | None) -> Iterator[None]:
    """Inside, what Keras draws is drawn for the global batch, and cut to a part's rows. None: for
    whoever says so inside."""
    with _drawn.inside(), drawn_by(rows):
        yield


@contextmanager
def variables_kept_by(make: Callable[[Any, Callable[[], Any]], Any]) -> Iterator[None]:
    """Inside, a new Keras variable is kept by what `make(variable, value)` gives, where that is not
    None. value: gives its first value."""
    owner, name = private.variable_initializer()
    own = getattr(owner, name)

    def initialize(self: Any, value: Any) -> None:
        made = make(self, value if callable(value) else lambda: value)
        own(self, value if made is None else made)

    with replaced(owner, name, initialize):
        yield


@contextmanager
def noting_assigned() -> Iterator[list[Any]]:
    """Inside, Keras variables that are assigned are noted."""
    own, assigned = keras.Variable.assign, []

    @wraps(own)
    def assign(self: Any, value: Any) -> Any:
        assigned.append(self)
        return own(self, value)

    with replaced(keras.Variable, "assign", assign):
        yield assigned


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside, operations on doubles give doubles on torch too, as they do on TensorFlow."""
    narrower, double = narrower_types(), "float64"
    before, narrower[double] = narrower[double], double
    try:
        yield
    finally:
        narrower[double] = before


@contextmanager
def dtype_policy(precision: str) -> Iterator[None]:
    """Inside, layers are made with float32 weights and compute in `precision`. The default leaves
    the user's own policy alone.

    Under a mixed policy a layer's variables are float32 and it computes with roundings of them:
    they are the master weights, and no second copy is. So O1 and O2, which differ in where the
    master weights are, are one policy here. BatchNorm's variables and sums are float32 in it.
    """
    name = _POLICIES.get(precision)
    if name is None:
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


_POLICIES = {
    "bfloat16": "mixed_bfloat16",
    "float16": "mixed_float16",
    "O0": "float32",
    "O1": "mixed_float16",
    "O2": "mixed_float16",
    "O3": "float16",
}
