"""The embedded tasks by explicit steps, beside ranks that run a loop of torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

import dream
from dream.adapters.keras.tools import tasks as networks
from dream.tools.compare import tasks
from dream.tools.compare.meter import Learned, Meter
from dream.tools.compare.settings import TaskJob
from dream.tools.compare.tasks import Data, EmbeddedTask


def train(job: TaskJob, meter: Meter) -> Learned:
    """Train and test, under the strategy that the command line names."""
    task = tasks.find(job.task)
    data = task.load()
    with dream.strategy(seed=job.seed) as strategy:
        model = networks.build(task, tasks.first_weights(task, job.seed))
        loss, optimizer = networks.loss_of(task), networks.optimizer_of(task)
        step = strategy.train_step(model, loss, optimizer)
        for epoch in range(job.epochs):
            sums = [0.0, 0.0]  # of losses, of samples
            for x, y in _batches(strategy, data, job.batch_size, epoch):
                meter.begin()
                if len(y):  # the mean over no sample is nan
                    sums[0] += float(loss(y, model(x))) * len(y)
                    sums[1] += len(y)
                step(x, y)
                meter.step(job.batch_size)
            everyone = strategy.communicator.all_reduce(tf.constant(sums, tf.float64), "sum")
            meter.epoch(float(everyone[0] / everyone[1]), len(data.x))
            with meter.aside():
                meter.scores.append(_score(task, model(data.x_test).numpy(), data.y_test))
    parameters = networks.parameters(model)
    return Learned(
        parameters,
        strategy.topology,
        strategy.communicator,
        batches=lambda: _batches(strategy, data, job.batch_size, 0),
        gradient=tf.zeros(sum(value.size for value in parameters.values())),
    )


def _score(task: EmbeddedTask, output: Any, y: Any) -> float:
    if task.loss == "squares":
        return networks.explained(float(((output - y) ** 2).mean()), y)
    return float((output.argmax(-1) == y).mean())


def _batches(strategy: Any, data: Data, size: int, epoch: int) -> Iterator[Any]:
    """Yield this rank's shares, in the order of torch's shuffled loaders."""
    order = strategy.order(len(data.x), epoch)
    arrays = (data.x[order], data.y[order])
    return iter(strategy.prepare(tf.data.Dataset.from_tensor_slices(arrays).batch(size)))
