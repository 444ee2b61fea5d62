"""A model in parts on the devices of one process, trained a batch at a time.

A batch is cut into microbatches, which the rows of the mesh take in turn; each row's parts run
them as the schedule says. What each microbatch counts for adds up to the mean over the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import tensorflow as tf

from dream._errors import Unsupported
from dream.adapters.keras import private
from dream.adapters.keras.engine import Engine
from dream.adapters.keras.private import put_in_place
from dream.adapters.tensorflow.parallel.split import clipping
from dream.adapters.tensorflow.parallel.split.cutting import Cut
from dream.adapters.tensorflow.parallel.split.layouts import belongs_to
from dream.adapters.tensorflow.parallel.split.parts import Judge, Parts
from dream.adapters.tensorflow.parallel.split.piece import Piece, Values, predict
from dream.adapters.tensorflow.parallel.split.playing import play, play_by_turns
from dream.adapters.tensorflow.parallel.split.schedule import Kind, Orders, Shape, Task, order
from dream.update.update import Knobs


@final
class Parted(Parts):
    """The parts of one model, all in this process.

    devices: each row's, one after another. Variables lie on the first row's; further rows have
    copies, which take the first's values after each step.
    """

    def __init__(self, model: Any, cut: Cut, devices: Sequence[Sequence[str]], kind: Kind) -> None:
        self.model = model
        self.cut = cut
        self.before = cut.before
        self.devices = devices
        self._kind = kind
        self._traced: frozenset[int] = frozenset()
        self.homes = {
            id(v): devices[0][part.device] for part in cut.parts for v in part.model.variables
        }
        for variable in model.variables:
            move(variable, self.homes[id(variable)])
        self.rows = [self._row(row) for row in range(len(devices))]
        self.copies = len(devices)
        self.trained = model.trainable_variables
        self._check = tf.function(clipping.finite)

    def _row(self, row: int) -> list[Piece]:
        pieces = []
        for part in self.cut.parts:
            device = self.devices[row][part.device]
            copies = {}
            if row:
                for v in part.model.variables:
                    with tf.device(device):
                        copies[id(v)] = tf.Variable(v.value, trainable=v.trainable)
            pieces.append(Piece(part, device, copies))
        return pieces

    def run(
        self, inputs: Any, rest: Any, fractions: Sequence[float], judge: Judge
    ) -> tuple[Any, list[Any]]:
        run = _Run(self, inputs, rest, fractions, judge)
        lengths = frozenset(len(private.tree.flatten(each)[0]) for each in inputs)
        run.play(by_turns=not lengths <= self._traced)
        self._traced |= lengths
        return run.loss(), run.outputs

    def summed(self, losses: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Over the rows, on the device of the first; the pieces start anew."""
        found: dict[int, Any] = {}
        for pieces in self.rows:
            for piece in pieces:
                for v, g in zip(piece.part.model.trainable_variables, piece.gradients, strict=True):
                    if g is not None:
                        with tf.device(self.homes[id(v)]):
                            found[id(v)] = found[id(v)] + g if id(v) in found else tf.identity(g)
                piece.gradients = [None] * len(piece.gradients)
        return tf.add_n(losses), [found.get(id(v)) for v in self.model.trainable_variables]

    def spread(self) -> None:
        for pieces in self.rows[1:]:
            for piece in pieces:
                for v, copy in zip(
                    piece.part.model.trainable_variables, piece.variables, strict=True
                ):
                    copy.assign(v.value)

    def settle(self, optimizer: Any) -> None:
        if not optimizer.built:
            optimizer.build(self.trained)
        for state in optimizer.variables:
            owner = belongs_to(state.name, state.shape, self.trained)
            move(state, "CPU:0" if owner is None else self.homes[id(owner)])

    def recompute(self, engine: Engine) -> None:
        if engine.knobs.recompute and self.copies > 1:
            raise Unsupported(
                "Further rows of one process compute on copies of the variables, which backward "
                f"does not find again. Received: recompute={engine.knobs.recompute!r}, data="
                f"{self.copies} in one process. Start a process for each device: dream run -n "
                f"{self.copies * len(self.devices[0])}."
            )
        super().recompute(engine)

    def limited(
        self, gradients: list[Any], optimizer: Any, knobs: Knobs, scale: float
    ) -> list[Any]:
        return gradients

    def finite(self, gradients: Sequence[Any]) -> Any:
        return self._check(gradients)

    def orders(self, microbatches: int) -> Orders:
        devices = tuple(part.device for part in self.cut.parts)
        return order(Shape(devices, self.before, microbatches), self._kind)

    def predict(self, inputs: Any) -> Any:
        """The model's output in evaluation, each part on its device; in a tf.function or not."""
        flat = private.flat_inputs(self.model, inputs)
        values: Values = dict(zip(self.cut.inputs, flat, strict=True))
        for part in self.cut.parts:
            predict(part, self.devices[0][part.device], values)
        return self.packed(values)


@final
class _Run:
    """One batch on its way."""

    def __init__(
        self, parted: Parted, inputs: Any, rest: Any, fractions: Sequence[float], judge: Judge
    ) -> None:
        self._parted = parted
        self._rest = rest
        self._fractions = fractions
        self._judge = judge
        count = len(fractions)
        self._values: list[Values] = [
            dict(zip(parted.cut.inputs, private.flat_inputs(parted.model, each), strict=True))
            for each in inputs
        ]
        self._slopes: list[Values] = [{} for _ in range(count)]
        self._losses: list[Any] = []
        self.outputs: list[Any] = [None] * count
        self._lock = threading.Lock()
        self._last = [p for p, part in enumerate(parted.cut.parts)
                      if set(part.gives) & set(parted.cut.outputs)]  # fmt: skip

    def play(self, *, by_turns: bool) -> None:
        """by_turns: in one thread, while there are functions to be traced, since Keras cannot
        trace in several."""
        parted, rows = self._parted, len(self._parted.rows)
        orders: dict[int, list[Task]] = {}
        for row in range(rows):
            mine = range(row, len(self._fractions), rows)
            for device, tasks in parted.orders(len(mine)).items():
                moved = [Task(t.part, mine[t.microbatch], t.backward) for t in tasks]
                orders[row * 1000 + device] = moved
        (play_by_turns if by_turns else play)(orders, self._needs, self._run)

    def _needs(self, task: Task) -> list[Task]:
        before, m = self._parted.before, task.microbatch
        if not task.backward:
            return [Task(part, m, False) for part in before[task.part]]
        later = [b for b, taken in enumerate(before) if task.part in taken]
        mine = [Task(part, m, False) for part in self._last]
        return [*mine, *(Task(part, m, True) for part in later)]

    def _run(self, task: Task) -> None:
        m = task.microbatch
        piece = self._parted.rows[m % len(self._parted.rows)][task.part]
        if task.backward:
            penalty = piece.backward(m, self._slopes[m], self._fractions[m], self._lock)
            self._note(penalty)
            return
        piece.forward(m, self._values[m])
        with self._lock:
            ready = self.outputs[m] is None and all(
                t in self._values[m] for t in self._parted.cut.outputs
            )
            if ready:
                self.outputs[m] = ()
        if ready:
            self._judge_one(m, piece.device)

    def _judge_one(self, m: int, device: str) -> None:
        outputs = [self._values[m][t] for t in self._parted.cut.outputs]
        with tf.device(device):
            loss, slopes = self._judge(
                [tf.identity(y) for y in outputs], (self._rest[m], self._fractions[m])
            )
        self._slopes[m].update(
            {t: s for t, s in zip(self._parted.cut.outputs, slopes, strict=True) if s is not None}
        )
        self.outputs[m] = outputs
        self._note(loss)

    def _note(self, loss: Any) -> None:
        with self._lock:
            self._losses.append(loss)

    def loss(self) -> Any:
        return tf.add_n([tf.zeros(()), *(tf.cast(x, tf.float32) for x in self._losses)])


def move(variable: Any, device: str) -> None:
    """Have a Keras variable lie on a device from now on."""
    own = variable.value
    if tf.DeviceSpec.from_string(own.device).device_index == int(device.rpartition(":")[2]):
        return
    with tf.device(device):
        made = tf.Variable(np.array(own), trainable=own.trainable, name=own.name[:-2])
    put_in_place(variable, made)
