"""`recompute="auto"` of Keras models on TensorFlow: a training call is traced once on the shapes of
a batch and never run; what backward takes from forward is what is kept. Costs are counted, not
timed, so every rank chooses alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import keras
import tensorflow as tf

from dream._errors import ConfigurationError, Unsupported
from dream._log import logger
from dream.adapters.keras import private
from dream.adapters.keras.update.auto_recompute import Call, Chooser
from dream.adapters.keras.update.runs import Run
from dream.adapters.tensorflow.operations import SAME, cost, size_of
from dream.update.recomputing import Measured, blocks_of, choose

_FLOPS, _BYTES = 5e10, 1e10
"""A second's, of a CPU's core: only their ratio weighs."""
_LIKELY_ROWS = 32
"""Where the budget is a share and the rows are not known: they hardly change it."""


@final
class TracedChooser(Chooser):
    """Chooses what is computed again by tracing a step.

    rows: those of a part's batch, asked for when it is traced; None where they are not known.
    """

    def __init__(self, model: Any, budget: float | str, rows: Callable[[], int | None]) -> None:
        super().__init__(model)
        self._budget, self._rows = budget, rows
        self._trace: _Trace | None = None

    def trains(self, training: Any) -> bool:
        return bool(training or (training is None and not tf.executing_eagerly()))

    def whole(self, call: Call, args: Any, kwargs: Any) -> Any:
        if self.chosen is None:
            self._choose(args, kwargs)
        return call(*args, **kwargs)

    def measured(self, place: int, call: Call, args: Any, kwargs: Any) -> Any:
        if self._trace is None:  # of a graph of another thread's
            return call(*args, **kwargs)
        return self._trace.of_part(place, self.parts[place], call, args, kwargs)

    def keep(self) -> None:
        if self._trace is not None:
            self._trace.keep()

    def _choose(self, args: Any, kwargs: Any) -> None:
        flat = tf.nest.flatten((args, kwargs))
        places = [i for i, x in enumerate(flat) if tf.is_tensor(x)]
        specs = [tf.TensorSpec(self._shape(flat[i].shape), flat[i].dtype) for i in places]

        def called(tensors: list[Any]) -> Any:
            values = list(flat)
            for i, tensor in zip(places, tensors, strict=True):
                values[i] = tensor
            inner, named = tf.nest.pack_sequence_as((args, kwargs), values)
            return self.model(*inner, **named)

        state = random.getstate()
        with ThreadPoolExecutor(1) as thread:  # in which no step, scope or tape is open
            found = thread.submit(self._traced, called, specs).result()
        random.setstate(state)
        names, line = choose(found, self._budget, stated=True)
        if names is None:
            raise ConfigurationError(line)
        logger.info("%s", line)
        self.chosen = frozenset(map(int, names))

    def _shape(self, shape: Any) -> list[int]:
        """Of a tensor of a batch, whose first dim counts rows; other dims that are not known end
        the trace."""
        dims = list(shape.as_list())
        if dims and dims[0] is None:
            rows = self._rows()
            if rows is None and not (isinstance(self._budget, float | int) and self._budget <= 1):
                raise Unsupported(
                    "The bytes of a step follow from the rows of a batch, which this data does not "
                    f"tell. Received: memory_budget={self._budget!r}. Give a share, as in "
                    "memory_budget=0.5, or batches of one size: .batch(n, drop_remainder=True)."
                )
            dims[0] = rows or _LIKELY_ROWS
        if None in dims:
            raise Unsupported(
                "The bytes of a step follow from a batch's shape, which is known in part. "
                f"Received: {tuple(dims)}, with recompute='auto'. Pass recompute=True, name "
                "layers, or give inputs of a fixed shape."
            )
        return dims

    def _traced(self, called: Callable[[list[Any]], Any], specs: list[Any]) -> Measured:
        model = self.model
        variables = [*model.trainable_variables, *model.non_trainable_variables]
        trained = len(model.trainable_variables)
        self._trace = trace = _Trace(self.parts)

        def step(values: list[Any], tensors: list[Any]) -> None:
            trace.begin(values)
            states = list(zip(variables, values, strict=True))
            scope = keras.StatelessScope(state_mapping=states)
            with tf.GradientTape() as tape:
                tape.watch(values[:trained])
                with scope, self.open():
                    outputs = called(tensors)
                ends = [x for x in tf.nest.flatten(outputs) if x.dtype.is_floating]
            trace.forward_ends(tf.nest.flatten(outputs))
            tape.gradient(ends, values[:trained], [tf.ones_like(x) for x in ends])

        weights = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
        try:
            tf.function(step, autograph=False).get_concrete_function(weights, specs)
            return trace.measured()
        finally:
            self._trace = None


@final
class _Trace:
    """The operations of one traced step: forward in its layers, then backward."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts
        self._keys: dict[tuple[int, int | None], int] = {}
        self._inputs: list[set[int]] = []
        self._spans: list[list[tuple[int, int]]] = []
        self._fixed: set[int] = set()
        self._stack: list[int] = []
        self._storages: dict[str, int] = {}
        self._sizes: list[int] = []
        self._forward = 0
        self._outputs: list[Any] = []

    def begin(self, weights: list[Any]) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._weights = {x.name for x in weights}

    def of_part(self, place: int, part: Any, call: Call, args: Any, kwargs: Any) -> Any:
        above = self._stack[-1] if self._stack else None
        if tf.compat.v1.get_default_graph() is not self._graph:  # in a branch or a loop
            return call(*args, **kwargs)
        index = self._keys.setdefault((place, above), len(self._keys))
        if index == len(self._spans):
            self._spans.append([])
            self._inputs.append(set())
        given = [x for x in tf.nest.flatten((args, kwargs)) if tf.is_tensor(x)]
        self._inputs[index] |= {s for s in map(self._storage, given) if s is not None}
        first, layers = self._count(), part.layers if isinstance(part, Run) else [part]
        losses = sum(map(private.added_losses, layers))
        self._stack.append(index)
        try:
            return call(*args, **kwargs)
        finally:
            self._stack.pop()
            self._spans[index].append((first, self._count()))
            if sum(map(private.added_losses, layers)) != losses:
                self._fixed.add(index)

    def keep(self) -> None:
        self._fixed.update(self._stack[-1:])

    def forward_ends(self, outputs: list[Any]) -> None:
        self._forward, self._outputs = self._count(), outputs

    def _count(self) -> int:
        return len(self._graph.get_operations())

    def _storage(self, x: Any) -> int | None:
        """The number of a tensor's memory; None for a weight's, and for what takes next to none."""
        while x.op.type in SAME and x.op.inputs:
            x = x.op.inputs[0]
        if x.name in self._weights or x.op.type in ("Const", "ReadVariableOp"):
            return None
        if x.name not in self._storages:
            self._storages[x.name] = len(self._sizes)
            self._sizes.append(size_of(x))
        return self._storages[x.name]

    def measured(self) -> Measured:
        operations = self._graph.get_operations()
        owners = self._owners(len(operations))
        numbers = {op.name: number for number, op in enumerate(operations[: self._forward])}
        saved: dict[tuple[int, int], Any] = {}  # by where forward makes them
        for op in operations[self._forward :]:
            for x in op.inputs:
                if x.op.name in numbers:
                    saved[numbers[x.op.name], x.value_index] = x
        saves: dict[tuple[int | None, int], None] = {}
        for (number, _), x in sorted(saved.items(), key=lambda item: item[0]):
            self._check(x, owners[number])
            if (storage := self._storage(x)) is not None:
                saves[owners[number], storage] = None
        for x in self._outputs:
            if (storage := self._storage(x)) is not None:
                saves[None, storage] = None
        seconds = [self._seconds(operations, spans) for spans in self._spans]
        whole = sum(s for s, (_, above) in zip(seconds, self._keys, strict=True) if above is None)
        kinds = [type(self._parts[place]).__name__ for place, _ in self._keys]
        blocks = blocks_of([*self._keys], kinds, seconds, self._fixed, self._inputs)
        return Measured(blocks, (*self._sizes,), (*saves,), whole)

    def _owners(self, count: int) -> list[int | None]:
        """The innermost layer that each operation is of."""
        owners: list[int | None] = [None] * count
        for index, spans in enumerate(self._spans):  # parents before their parts
            for first, last in spans:
                owners[first:last] = [index] * (last - first)
        return owners

    def _check(self, x: Any, owner: int | None) -> None:
        if x.dtype != tf.variant and None not in (x.shape.as_list() if x.shape.rank else [0]):
            return
        places = [place for place, _ in self._keys]
        what = "the model" if owner is None else f"{self._parts[places[owner]].name!r}"
        raise Unsupported(
            "What is kept for backward is counted before the first step, and a loop or a shape "
            f"that follows the data hides it. Received: recompute='auto', {what} keeping "
            f"{x.op.type}. Pass recompute=True, or name layers."
        )

    @staticmethod
    def _seconds(operations: list[Any], spans: list[tuple[int, int]]) -> float:
        found = [cost(op) for first, last in spans for op in operations[first:last]]
        return sum(max(flops / _FLOPS, moved / _BYTES) for _, flops, moved in found)
