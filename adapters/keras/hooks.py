"""All that is changed of Keras: the classes and functions that a block replaces and puts back, and
the methods of its models, which change on the instance for life.

A model's class stays, and with it how the model is saved, copied and pickled: copies are ordinary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from inspect import signature
from pathlib import Path
from types import MethodType
from typing import Any, final

import keras

from dream import _observers, _patches, stall
from dream._errors import Unsupported
from dream._patches import Patches
from dream.adapters.keras import (
    checks,
    consistency,
    files,
    fit,
    losses,
    optimizer,
    private,
    recompute,
    step,
)
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.randomness.draws import ShareRows, drawn_by, global_forms, noting_stacks
from dream.adapters.keras.update import batch_norm
from dream.adapters.keras.update.private import losses_by_thread
from dream.data import tracked
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
    writing: _Wrap = files.writing,
) -> None:
    """Have `model` and `optimizer` called on each that is made, and models saved by `writing`."""
    on_created(patches, keras.Model, model)
    on_created(patches, keras.optimizers.Optimizer, optimizer)
    wrap_files(patches, writing, files.reading)


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


@final
class KerasBlock:
    """Distributes the models and optimizers that are made while it is open."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._patches = Patches()
        self._open = ExitStack()

    def enter(self) -> None:
        stall.phases_inside(PHASE_RULES)
        for observer in _observers.registered:
            observer.entering_keras()
        engine = self.engine
        self._open.enter_context(engine.creating())
        self._open.enter_context(dtype_policy(engine.update_options.precision))
        on_created(self._patches, keras.Model, lambda made: distribute(made, engine))
        if engine.steps or engine.update_options.clips:
            on_created(
                self._patches, keras.optimizers.Optimizer, lambda made: optimizer.take(made, engine)
            )
        if engine.parts > 1:
            wrap_files(self._patches, files.writing, files.reading)

    def exit(self) -> None:
        self._patches.restore()
        self._open.close()

    def prepare(self, item: Any) -> Any:
        """Distribute a model or an optimizer that was made before the block."""
        if isinstance(item, keras.Model):
            return distribute(item, self.engine)
        if isinstance(item, keras.optimizers.Optimizer):
            return optimizer.take(item, self.engine)
        return item

    def takes(self, item: Any) -> bool:
        """Whether this is a model or an optimizer of Keras's."""
        return isinstance(item, (keras.Model, keras.optimizers.Optimizer))

    def start(self, item: Any) -> None:
        """Do what `fit` does beside agreeing on variables, for a first step taken by hand."""
        if not isinstance(item, keras.Layer):
            return
        consistency.report_micro_draws(item, self.engine)
        if self.engine.parts > 1:
            batch_norm.synchronise(item, self.engine)
            consistency.report_local_statistics(item, self.engine)


def distribute(model: Any, engine: Engine) -> Any:
    """Have the model trained and evaluated over the engine's parts from now on."""
    if "fit" in vars(model):
        return model
    engine.update_options.only(engine.honours, f"A Keras model on {engine.framework}")
    if not engine.fits:
        engine.update_options.refuse_fitting(f"A Keras model on {engine.framework}")
    if not engine.chooses or engine.mixed:
        engine.update_options.refuse_choosing(f"A Keras model on {engine.framework}")
    if engine.draws_locally and engine.parts > 1:
        raise Unsupported(
            "In Keras models dropout and noise are always drawn for the global batch. Received: "
            f"randomness='local' for {model.name!r}. Remove randomness."
        )
    state = fit.FitState(engine)
    tracked.mark(model, state.progress)
    recompute.adopt_when_called(model, engine)
    for name, loop in fit.LOOPS.items():
        if name == "fit" or engine.parts > 1 or (name == "train_on_batch" and engine.steps):
            _bind(model, name, _loop(name, loop, state))
    _bind(model, "make_train_function", _with(fit.make_train_function, state))
    if engine.steps and engine.parts == 1:
        _bind(model, "train_step", _with(step.train_step, engine))
    if engine.parts > 1:
        engine.adopt_model(model)
        for function in (step.train_step, step.test_step, losses.compute_loss):
            _bind(model, function.__name__, _with(function, engine))
        model.compile = MethodType(_compile(engine), model)
        files.distribute(model)
        optimizer.take_all(model, engine)
    return model


def _bind(model: Any, name: str, method: Callable[..., Any]) -> None:
    method.__name__ = name
    setattr(model, name, MethodType(method, model))


def _loop(name: str, loop: Callable[..., Any], state: fit.FitState) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with state.engine.looping():
            return loop(self, state, arguments_of(self, name, args, kwargs))

    return call


def arguments_of(
    model: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of one of Keras's loops by name, the defaults among them."""
    bound = signature(getattr(keras.Model, name)).bind(model, *args, **kwargs)
    bound.apply_defaults()
    del bound.arguments["self"]
    extra = bound.arguments.pop("kwargs", {})
    return {**bound.arguments, **extra}


def _with(function: Callable[..., Any], bound: Any) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, bound, *args, **kwargs)

    return call


def _compile(engine: Engine) -> Callable[..., Any]:
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        with engine.creating():
            type(self).compile(self, *args, **kwargs)
        given = signature(type(self).compile).bind(self, *args, **kwargs).arguments
        checks.check_compilation(self, engine, given.get("jit_compile"))
        optimizer.take_all(self, engine)

    return compile
