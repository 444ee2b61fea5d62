"""Keras models and optimizers of replicas that step alone: what changes on the instances, for life;
and what a backend does between its tensors and flat arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from types import MethodType
from typing import TYPE_CHECKING, Any, final

import keras

from dream._errors import ConfigurationError, Unsupported
from dream._patches import Patches
from dream.adapters.keras import private
from dream.adapters.keras.asynchronous.fit import WorkerSteps, fit
from dream.adapters.keras.checkpoint import model_files
from dream.adapters.keras.data.sources import DataPasses
from dream.adapters.keras.hooks import take_made
from dream.checkpoint.checkpointer import Checkpointer

if TYPE_CHECKING:
    from numpy.typing import NDArray

Local = Callable[..., tuple[Any, Sequence[Any]]]
"""From a batch to what is told of it, and the gradients, None where there is none."""
_READ = ("evaluate", "predict", "test_on_batch", "predict_on_batch")


def apply_gradients(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], present: bytes
) -> None:
    """Step by those gradients that are there: present has a byte for each, or is empty where all
    are. A step without any is counted all the same."""
    there = [
        pair
        for index, pair in enumerate(zip(gradients, variables, strict=True))
        if not present or present[index]
    ]
    if there:
        type(optimizer).apply(optimizer, *zip(*there, strict=True))
    else:
        private.counter(optimizer).assign_add(1)


class FlatParameters(ABC):
    """A backend's way with parameters end to end, shape (n,)."""

    @abstractmethod
    def update(self, optimizer: Any, variables: Sequence[Any]) -> Callable[[Any, bytes], Any]:
        """Make a function that applies a flat gradient and returns the flat parameters. Its second
        argument has a byte for each variable, 0 where it has no gradient, or is empty."""

    @abstractmethod
    def flat(self, variables: Sequence[Any]) -> NDArray[Any]:
        """Return the variables' values end to end."""

    @abstractmethod
    def differentiate(
        self, local: Local, variables: Sequence[Any], *, eager: bool, one_length: bool
    ) -> Callable[[tuple[Any, ...], NDArray[Any]], tuple[Any, bytes]]:
        """Make of `local`, as the backend runs it best, a function of a batch that writes the
        gradients into a flat array, and returns what was told and a byte for each gradient as in
        `update`.

        variables: what the gradients are of; eager: as Python runs it; one_length: whether all
            batches have as many samples.
        """

    def dense(self, gradients: Sequence[Any], optimizer: Any) -> list[Any]:
        """Return gradients as whole tensors, where a backend has other forms of them."""
        del optimizer
        return list(gradients)

    @abstractmethod
    def tensors(self, batch: Any) -> Any:
        """Return a batch of arrays as the backend's tensors."""


class ServedMachine(FlatParameters):
    """A backend that also trains on servers."""

    @abstractmethod
    def load(self, variables: Sequence[Any], counter: Any) -> Callable[[Any, int], None]:
        """Make a function that puts flat parameters into the variables, and a number into the
        counter."""


@final
class CaughtGradients:
    """What the optimizers of a block are given in a step, kept from being applied. why, remedy: for
    the error of one that is applied outside a step."""

    def __init__(self, machine: FlatParameters, why: str, remedy: str) -> None:
        self._machine, self._why, self._remedy = machine, why, remedy
        self._caught: list[tuple[Sequence[Any], Sequence[Any]]] | None = None

    def take(self, optimizer: Any) -> Any:
        """Have the optimizer's `apply` from now on only say what it was given. Its class's own
        still applies."""
        if "apply" in vars(optimizer):
            return optimizer
        catching = self

        def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if catching._caught is None:
                raise ConfigurationError(
                    f"{catching._why}. Received: {type(self).__name__}.apply outside a dream step. "
                    f"{catching._remedy}."
                )
            if trainable_variables is None:
                trainable_variables = private.known_to(self)
            gradients = catching._machine.dense(grads, self)
            catching._caught.append((gradients, list(trainable_variables)))

        optimizer.apply = MethodType(apply, optimizer)
        return optimizer

    def of(self, step: Callable[..., Any], order: Sequence[Any]) -> Local:
        """Make a function of what a step tells, and the gradients that it gives an optimizer, in
        this order of variables."""

        def local(*batch: Any) -> tuple[Any, list[Any]]:
            with self._catching(order) as gradients:
                told = step(*batch)
            return told, gradients

        return local

    def of_fit(
        self, model: Any, machine: FlatParameters, order: Sequence[Any], *, one_length: bool = False
    ) -> Callable[[tuple[Any, ...], NDArray[Any]], tuple[Any, bytes]]:
        """Return the model's train step as `Machine.differentiate` gives it: kept, as Keras's own
        is, until the next compile."""
        if model.train_function is None:
            local = self.of(lambda batch: type(model).train_step(model, batch), order)
            model.train_function = machine.differentiate(
                local, order, eager=model.run_eagerly, one_length=one_length
            )
        return model.train_function  # type: ignore[no-any-return]

    @contextmanager
    def _catching(self, order: Sequence[Any]) -> Iterator[list[Any]]:
        """Fill the list, at the end, with what was given inside; None where nothing was."""
        found: list[Any] = []
        before, self._caught = self._caught, []
        try:
            yield found
            if len(self._caught) != 1:
                raise Unsupported(
                    "A step must apply gradients once. Received: a step that applied "
                    f"{len(self._caught)}. Call the optimizer once in train_step."
                )
            ((gradients, variables),) = self._caught
            by_variable = dict(zip(map(id, variables), gradients, strict=True))
            found.extend(by_variable.get(id(v)) for v in order)
        finally:
            self._caught = before


@final
class LocalBlock:
    """While it is open, the constructors of models and optimizers are changed, and the functions
    that save and load models. take_optimizer: what becomes of an optimizer."""

    def __init__(
        self, steps: WorkerSteps, seed: int, take_optimizer: Callable[[Any], Any], strategy: str
    ) -> None:
        self._steps, self._seed, self._strategy = steps, seed, strategy
        self._take_optimizer = take_optimizer
        self.held_by: Callable[[], Checkpointer] | None = None
        """Makes what saves and loads its models; None where they are refused."""
        self._patches = Patches()

    def enter(self) -> None:
        take_made(self._patches, self._take_model, self._take_optimizer)

    def exit(self) -> None:
        self._patches.restore()

    def takes(self, item: Any) -> bool:
        """Whether this is a model or an optimizer of Keras's."""
        return isinstance(item, (keras.Model, keras.optimizers.Optimizer))

    def prepare(self, item: Any) -> Any:
        """Take a model or an optimizer that was made before the block."""
        return (
            self._take_model(item) if isinstance(item, keras.Model) else self._take_optimizer(item)
        )

    def _take_model(self, model: Any) -> Any:
        """Have the model's loops from now on be this worker's."""
        if "fit" in vars(model):
            return model
        model.fit = MethodType(self._fit(DataPasses()), model)
        for name in _READ:
            setattr(model, name, MethodType(self._read(name), model))
        model.train_on_batch = MethodType(self._refused, model)
        model_files.distribute(model)
        return model

    def _fit(self, passes: DataPasses) -> Callable[..., Any]:
        steps, seed = self._steps, self._seed

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            given = signature(keras.Model.fit).bind(model, *args, **kwargs)
            given.apply_defaults()
            del given.arguments["self"]
            with steps.looping():
                return fit(model, steps, passes, seed, dict(given.arguments))

        call.__name__ = "fit"
        return call

    def _read(self, name: str) -> Callable[..., Any]:
        """Make a loop that each worker runs for itself, on the newest parameters."""
        steps = self._steps
        shows = "verbose" in signature(getattr(keras.Model, name)).parameters

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            steps.refresh()
            if shows and steps.rank:
                kwargs["verbose"] = 0
            with steps.looping():
                return getattr(type(model), name)(model, *args, **kwargs)

        call.__name__ = name
        return call

    def _refused(self, model: Any, *_: Any, **__: Any) -> None:
        raise Unsupported(
            f"Under {self._strategy!r} a step needs a batch handed out by the servers. Received: "
            f"{model.name!r}.train_on_batch. Use fit, or strategy.train_step."
        )
