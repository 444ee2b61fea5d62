"""A model whose parts lie on several ranks, trained a batch at a time.

Every rank reads the whole batch. The rows of the mesh take its microbatches in turn; within a row
tensors go from rank to rank, and so do the gradients by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, final

import keras
import numpy as np
import tensorflow as tf

from dream._layout import check_same
from dream._mesh import Mesh
from dream.adapters.keras import private
from dream.adapters.keras.consistency import by_name
from dream.adapters.tensorflow.parallel.split import afar, clipping
from dream.adapters.tensorflow.parallel.split.afar import Home
from dream.adapters.tensorflow.parallel.split.cutting import Cut
from dream.adapters.tensorflow.parallel.split.journey import Journey, Load, Routes
from dream.adapters.tensorflow.parallel.split.layouts import belongs_to
from dream.adapters.tensorflow.parallel.split.mail import Mail
from dream.adapters.tensorflow.parallel.split.parts import Judge, Parts
from dream.adapters.tensorflow.parallel.split.piece import Piece, listed
from dream.adapters.tensorflow.parallel.split.schedule import Kind, Orders, Task
from dream.adapters.tensorflow.parallel.split.together import Together
from dream.collectives import Communicator
from dream.update.update import Knobs


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a mesh. talk: for what goes from one to another; copy, twins: those of this
    rank's row and column; device: this rank's own."""

    everyone: Communicator
    talk: Communicator
    copy: Communicator
    twins: Communicator
    axes: Mesh
    device: str
    together: Together

    @property
    def row(self) -> int:
        return self.axes.data_index(self.everyone.rank)

    @property
    def here(self) -> int:
        """The device of a row that this rank is."""
        return self.axes.model_index(self.everyone.rank)

    def of_row(self, row: int) -> list[int]:
        return [row * self.axes.model + device for device in range(self.axes.model)]


@final
class Across(Parts):
    """The parts of one model, one or more on each rank."""

    def __init__(self, model: Any, cut: Cut, kind: Kind, ranks: Ranks) -> None:
        self.model, self.cut, self.ranks = model, cut, ranks
        self.copies = ranks.axes.data
        self._kind = kind
        self.routes = Routes(cut)
        self._device_of = {id(v): part.device for part in cut.parts for v in part.model.variables}
        check_same(ranks.everyone.all_gather_object(by_name(model.variables)))
        for variable in model.variables:
            mine = keras.ops.convert_to_numpy(variable.value)
            variable.assign(ranks.everyone.broadcast(mine))
            afar.send_home(variable, self._home(variable))
        self._pieces = {
            index: Piece(part, ranks.device, {})
            for index, part in enumerate(cut.parts)
            if part.device == ranks.here
        }
        self.trained = [v for v in model.trainable_variables if self._home(v).here]
        self._evaluates = {p: tf.function(partial(_evaluate, piece.part.model), jit_compile=False)
                           for p, piece in self._pieces.items()}  # fmt: skip

    def _home(self, variable: Any) -> Home:
        device, ranks = self._device_of[id(variable)], self.ranks
        return Home(device, device == ranks.here, ranks.together, ranks.everyone)

    @property
    def teller(self) -> int:
        """The rank that a batch's outputs come to."""
        return self.routes.devices[-1]

    def run(
        self, inputs: Any, rest: Any, fractions: Sequence[float], judge: Judge
    ) -> tuple[Any, list[Any]]:
        ranks, count = self.ranks, len(fractions)
        mine = range(ranks.row, count, self.copies)
        load = Load(
            [dict(zip(self.cut.inputs, private.flat_inputs(self.model, inputs[m]), strict=True))
             for m in mine],
            [rest[m] for m in mine], [fractions[m] for m in mine],
        )  # fmt: skip
        members = ranks.of_row(ranks.row)
        journey = Journey(self.routes, self._pieces, load, judge, ranks.here, members)
        orders = self.routes.orders(len(mine), self._kind)
        journey.run(orders, self._mail(orders))
        loss = tf.add_n([tf.zeros(()), *(tf.cast(x, tf.float32) for x in journey.losses)])
        outputs = [journey.outputs.get(m // self.copies) if m in mine else None
                   for m in range(count)]  # fmt: skip
        return loss, outputs

    def _mail(self, orders: Orders) -> Mail:
        ranks = self.ranks
        coming = {
            rank: self.routes.letters(orders.get(device, ()), ranks.here)
            for device, rank in enumerate(ranks.of_row(ranks.row))
            if device != ranks.here
        }
        return Mail(ranks.talk, coming)

    def summed(self, losses: Sequence[Any]) -> tuple[Any, list[Any]]:
        loss = self.ranks.everyone.all_reduce(tf.add_n(losses), "sum")
        return loss, self._over_rows()

    def _over_rows(self) -> list[Any]:
        """The sums of gradients; the pieces start anew."""
        found: dict[int, Any] = {}
        for piece in self._pieces.values():
            for v, g in zip(piece.part.model.trainable_variables, piece.gradients, strict=True):
                found[id(v)] = g
            piece.gradients = [None] * len(piece.gradients)
        mine = [found[id(v)] for v in self.trained]
        if self.copies == 1 or not mine:
            return mine
        there = np.array([g is not None for g in mine], np.float32)
        whole = [tf.zeros(v.shape, v.dtype) if g is None else g
                 for v, g in zip(self.trained, mine, strict=True)]  # fmt: skip
        anywhere, *sums = self.ranks.twins.all_reduce([tf.constant(there), *whole], "sum")
        return [g if here else None for here, g in zip(anywhere.numpy(), sums, strict=True)]

    def collected(self, runs: list[list[Any]]) -> list[Any] | None:
        """All microbatches' outputs, on the teller; None elsewhere."""
        found = [self._collected(outputs) for outputs in runs]
        whole = [each for each in found if each is not None]
        return list(chain(*whole)) if whole else None

    def _collected(self, outputs: list[Any]) -> list[Any] | None:
        ranks, rank = self.ranks, self.ranks.everyone.rank
        talk = ranks.talk
        if rank == self.teller:
            return [
                own if own is not None else [
                    talk.receive(ranks.of_row(m % self.copies)[self.teller])
                    for _ in self.cut.outputs
                ]
                for m, own in enumerate(outputs)
            ]  # fmt: skip
        if ranks.here == self.teller:
            for own in outputs:
                for tensor in own or ():
                    talk.isend(tensor, self.teller)
        return None

    def settle(self, optimizer: Any) -> None:
        variables = self.model.trainable_variables
        if not optimizer.built:
            with tf.variable_creator_scope(self._state):
                optimizer.build(variables)
        for state in optimizer.variables:
            owner = belongs_to(state.name, state.shape, variables)
            if owner is not None:
                afar.send_home(state, self._home(owner))

    def _state(self, make: Any, **given: Any) -> Any:
        """A state made where it belongs, so that no rank has all."""
        start = given["initial_value"]
        array = np.asarray(start() if callable(start) else start)
        owner = belongs_to(given["name"], array.shape, self.model.trainable_variables)
        if owner is None:
            return make(**given)
        trains = bool(given["trainable"])
        return afar.made(array, self._home(owner), trains=trains, called=given["name"])

    def limited(
        self, gradients: list[Any], optimizer: Any, knobs: Knobs, scale: float
    ) -> list[Any]:
        most = clipping.limit(optimizer, knobs)
        if most is None:
            return gradients
        squares = self.ranks.copy.all_reduce(clipping.squares(gradients), "sum")
        return clipping.scaled(gradients, squares, most * scale)

    def finite(self, gradients: Sequence[Any]) -> Any:
        mine = tf.cast(clipping.finite(gradients), tf.float32)
        return self.ranks.everyone.all_reduce(mine, "min") > 0

    def spread(self) -> None:
        """Nothing: each row has added up the same gradients."""

    def forward(self, inputs: Any) -> tuple[Any, Any]:
        """(the model's output in evaluation, the penalties of its layers), on every rank. The
        rows share the samples."""
        flat = private.flat_inputs(self.model, inputs)
        samples = int(flat[0].shape[0])
        bounds = np.linspace(0, samples, self.copies + 1).round().astype(int)
        ranks, row = self.ranks, self.ranks.row
        mine = [x[bounds[row] : bounds[row + 1]] for x in flat]
        tasks = {
            device: [Task(p, 0, False) for p, on in enumerate(self.routes.devices)
                     if on == device and p != self.routes.judge]
            for device in range(ranks.axes.model)
        }  # fmt: skip
        values = dict(zip(self.cut.inputs, mine, strict=True))
        penalties = [tf.zeros(())]
        if len(mine[0]):
            mail = self._mail(tasks)
            for task in tasks[ranks.here]:
                penalties.append(self._evaluate(task, values, mail))
            for t in self.cut.outputs:
                self._fetch(t, values, mail)
        share = (bounds[row + 1] - bounds[row]) / max(samples, 1)
        whole = self._joined(values, bounds)
        penalty = ranks.everyone.all_reduce(tf.add_n(penalties) * share, "sum")
        return self.packed(whole), penalty

    def _evaluate(self, task: Task, values: dict[int, Any], mail: Mail) -> Any:
        piece = self._pieces[task.part]
        for t in piece.part.takes:
            self._fetch(t, values, mail)
        given, penalty = self._evaluates[task.part](*[values[t] for t in piece.part.takes])
        for t, y in zip(piece.part.gives, given, strict=True):
            values[t] = y
            for device in self.routes.goes_to(t):
                mail.send(y, self.ranks.of_row(self.ranks.row)[device])
        return penalty

    def _fetch(self, t: int, values: dict[int, Any], mail: Mail) -> None:
        if t in values or self.ranks.here not in self.routes.goes_to(t):
            return
        maker = self.routes.maker[t]
        source = self.ranks.of_row(self.ranks.row)[self.routes.devices[maker]]
        values[t] = mail.take(source, ("value", t, 0, maker))

    def _joined(self, values: dict[int, Any], bounds: Any) -> dict[int, Any]:
        """The outputs of all rows, which each row's judge sends to all the others."""
        ranks, talk = self.ranks, self.ranks.talk
        rows = [row for row in range(self.copies) if bounds[row + 1] > bounds[row]]
        tellers = [ranks.of_row(row)[self.teller] for row in rows]
        if talk.rank in tellers:
            for t in self.cut.outputs:
                for rank in range(talk.world_size):
                    if rank != talk.rank:
                        talk.isend(values[t], rank)
        parts: dict[int, list[Any]] = {t: [] for t in self.cut.outputs}
        for teller in tellers:
            for t in self.cut.outputs:
                parts[t].append(values[t] if teller == talk.rank else talk.receive(teller))
        return {t: tf.concat(found, 0) for t, found in parts.items()}


def _evaluate(model: Any, *taken: Any) -> tuple[list[Any], Any]:
    given = listed(model(list(taken), training=False))
    return given, tf.add_n([tf.zeros(()), *(tf.cast(x, tf.float32) for x in model.losses)])
