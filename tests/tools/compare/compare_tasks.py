"""Tasks that need no framework, some of them broken: what ranks of a job under test run."""

import os
import sys
import time

import numpy as np

from dream import Unsupported, cluster
from dream._topology import Topology
from dream.tools.compare.meter import Learned


class Still:
    """What a task's ranks would add up with, had they anything to add."""

    reduction = "gloo"

    def unchecked(self):
        return self

    def barrier(self):
        pass

    def all_reduce(self, x):
        return x


def fine(job, meter, shift=0.0):
    """Learns the same numbers everywhere."""
    place = cluster.detect()
    for epoch in range(job.epochs):
        meter.begin()
        time.sleep(0.01)
        meter.step(job.batch_size)
        meter.epoch(1 / (1 + epoch), 640)
        with meter.aside():
            time.sleep(0.2)
            meter.scores.append(0.9)
    topology = Topology.of(place, num_replicas=place.world_size, device="cpu")
    kernel = np.full((2, 3), 0.5 + shift, np.float32)
    return Learned({"kernel": kernel}, topology, Still(), lambda: [kernel] * 3, kernel)


def broken_mirrored(job, meter):
    """Under `mirrored` the second rank raises; else fine."""
    if cluster.requested_strategy() == "mirrored" and cluster.detect().rank == 1:
        raise ValueError("rank one cannot add")
    return fine(job, meter)


def refused_when_several(job, meter):
    if not cluster.detect().alone:
        raise Unsupported("This model cannot be split. Use mirrored.")
    return fine(job, meter)


def wrong_when_several(job, meter):
    return fine(job, meter, shift=0.0 if cluster.detect().alone else 3e-6)


def leaves(job, meter):
    """Exits with 0 before it has learned anything, wherever there are several ranks."""
    if not cluster.detect().alone:
        sys.stdout.flush()
        os._exit(0)
    return fine(job, meter)


def hangs(job, meter):
    if not cluster.detect().alone:
        time.sleep(600)
    return fine(job, meter)


def told_torch(job, meter):
    """Says by its score that it ran, and beside which backend of Keras."""
    return _scored(job, meter, 0.25 if _keras() == "torch" else 0.0)


def told_tensorflow(job, meter):
    return _scored(job, meter, 0.75 if _keras() == "tensorflow" else 0.0)


def told_how_slow(job, meter):
    """Says by its score how many times as long its steps are to take, in sixteenths."""
    return _scored(job, meter, meter.slow / 16)


def _scored(job, meter, score):
    learned = fine(job, meter)
    meter.scores[-1] = score
    return learned


def _keras():
    return os.environ.get("KERAS_BACKEND")
