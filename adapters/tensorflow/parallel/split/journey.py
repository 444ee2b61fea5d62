"""One batch on its way through the ranks that hold a model's parts, as one of them sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import tensorflow as tf

from dream.adapters.tensorflow.parallel.split.cutting import Cut
from dream.adapters.tensorflow.parallel.split.mail import Letter, Mail
from dream.adapters.tensorflow.parallel.split.piece import Piece, Values
from dream.adapters.tensorflow.parallel.split.schedule import Kind, Orders, Shape, Task, order


@final
class Routes:
    """Which tensors go from which part to which. The loss is one part more, the last, where the
    last of the parts that give outputs is."""

    def __init__(self, cut: Cut) -> None:
        self.takes = [*(part.takes for part in cut.parts), cut.outputs]
        self.gives = [*(part.gives for part in cut.parts), ()]
        self.maker = {t: p for p, gives in enumerate(self.gives) for t in gives}
        self.judge = len(cut.parts)
        outputs = sorted({self.maker[t] for t in cut.outputs if t in self.maker})
        self.devices = [*(part.device for part in cut.parts), cut.parts[outputs[-1]].device]
        self._before = (*cut.before, tuple(outputs))

    def orders(self, microbatches: int, kind: Kind) -> Orders:
        shape = Shape(tuple(self.devices), self._before, microbatches, judged=True)
        return order(shape, kind)

    def takers(self, t: int) -> list[int]:
        """The parts that take a tensor."""
        return [p for p, takes in enumerate(self.takes) if t in takes]

    def goes_to(self, t: int) -> list[int]:
        """The other devices that a tensor is sent to."""
        own = self.devices[self.maker[t]]
        return sorted({self.devices[p] for p in self.takers(t)} - {own})

    def letters(self, tasks: Sequence[Task], to: int) -> Iterator[Letter]:
        """What a device that runs these tasks sends to another."""
        for task in tasks:
            if not task.backward:
                for t in self.gives[task.part]:
                    if to in self.goes_to(t):
                        yield "value", t, task.microbatch, task.part
                continue
            for t in self.takes[task.part]:
                here = self.devices[task.part]
                if t in self.maker and self.devices[self.maker[t]] == to != here:
                    yield "slope", t, task.microbatch, task.part


@dataclass(frozen=True, slots=True)
class Load:
    """What a row of ranks does of a batch: microbatches, and what each counts for."""

    values: Sequence[Values]
    rest: Sequence[Any]
    fractions: Sequence[float]


@final
class Journey:
    """judge: from a microbatch's outputs, its other half and its fraction, the loss and its
    gradient by each output. ranks: by device, its rank in this row."""

    def __init__(
        self,
        routes: Routes,
        pieces: Mapping[int, Piece],
        load: Load,
        judge: Callable[..., Any],
        here: int,
        ranks: Sequence[int],
    ) -> None:
        self._routes, self._pieces, self._load = routes, pieces, load
        self._judge, self._here, self._ranks = judge, here, ranks
        self._slopes: dict[tuple[int, int, int], Any] = {}
        self._judged: dict[int, Sequence[Any]] = {}
        self._lock = threading.Lock()
        self.losses: list[Any] = []
        self.outputs: dict[int, list[Any]] = {}

    def run(self, orders: Orders, mail: Mail) -> None:
        for task in orders.get(self._here, ()):
            if task.part == self._routes.judge:
                (self._judge_backward if task.backward else self._judge_forward)(task, mail)
            elif task.backward:
                self._backward(task, mail)
            else:
                self._forward(task, mail)

    def _forward(self, task: Task, mail: Mail) -> None:
        values = self._fetched(task, mail)
        self._pieces[task.part].forward(task.microbatch, values)
        for t in self._routes.gives[task.part]:
            for device in self._routes.goes_to(t):
                mail.send(values[t], self._ranks[device])

    def _judge_forward(self, task: Task, mail: Mail) -> None:
        values, m = self._fetched(task, mail), task.microbatch
        outputs = [values[t] for t in self._routes.takes[task.part]]
        given = self._load.rest[m], self._load.fractions[m]
        loss, slopes = self._judge([tf.identity(y) for y in outputs], given)
        self.losses.append(loss)
        self.outputs[m], self._judged[m] = outputs, slopes

    def _judge_backward(self, task: Task, mail: Mail) -> None:
        slopes = self._judged.pop(task.microbatch)
        self._deliver(task, dict(zip(self._routes.takes[task.part], slopes, strict=True)), mail)

    def _backward(self, task: Task, mail: Mail) -> None:
        m = task.microbatch
        gives = self._routes.gives[task.part]
        slopes = {t: s for t in gives if (s := self._summed(t, m, mail)) is not None}
        penalty = self._pieces[task.part].backward(m, slopes, self._load.fractions[m], self._lock)
        self.losses.append(penalty)
        for t in gives:
            del self._load.values[m][t]
        self._deliver(task, slopes, mail)

    def _fetched(self, task: Task, mail: Mail) -> Values:
        """The microbatch's tensors, with what the part takes among them."""
        values = self._load.values[task.microbatch]
        for t in self._routes.takes[task.part]:
            if t not in values:
                maker = self._routes.maker[t]
                source = self._ranks[self._routes.devices[maker]]
                values[t] = mail.take(source, ("value", t, task.microbatch, maker))
        return values

    def _summed(self, t: int, m: int, mail: Mail) -> Any:
        """The loss's gradient by a tensor: what all that take it found."""
        found = []
        for taker in self._routes.takers(t):
            device = self._routes.devices[taker]
            if device == self._here:
                found.append(self._slopes.pop((t, m, taker)))
            else:
                found.append(mail.take(self._ranks[device], ("slope", t, m, taker)))
        present = [slope for slope in found if slope is not None]
        return tf.add_n(present) if present else None

    def _deliver(self, task: Task, slopes: Mapping[int, Any], mail: Mail) -> None:
        for t in self._routes.takes[task.part]:
            if t in self._routes.maker:
                device = self._routes.devices[self._routes.maker[t]]
                if device == self._here:
                    self._slopes[t, task.microbatch, task.part] = slopes.get(t)
                else:
                    mail.send(slopes.get(t), self._ranks[device])
