"""Keras under TensorFlow's own MirroredStrategy: what the Keras laws must be able to notice."""

from __future__ import annotations

import contract_keras_fit as fit
import tensorflow as tf
from contract_case import Cases, Env, Figures
from contract_keras_kit import start

CASES = Cases()
__all__ = ["CASES", "start"]


def _mirrored(env: Env) -> tf.distribute.Strategy:
    """The one MirroredStrategy of the process, over logical CPUs."""
    if len(tf.config.list_logical_devices("CPU")) != env.cell.replicas:
        raise RuntimeError("the logical devices were set too late")
    if not _made:
        devices = [f"CPU:{index}" for index in range(env.cell.replicas)]
        _made.append(tf.distribute.MirroredStrategy(devices))
    return _made[0]


_made: list[tf.distribute.Strategy] = []
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@CASES.add("cell")
def raw_uneven(env: Env) -> Figures:
    with _mirrored(env).scope():
        return fit.rank_dependent_initial_weights(Env("plain", env.cell, 0, env.folder))


@CASES.add("cell")
def raw_clipping(env: Env) -> Figures:
    with _mirrored(env).scope():
        return fit.global_clipnorm(Env("plain", env.cell, 0, env.folder))
