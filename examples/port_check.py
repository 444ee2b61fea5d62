"""A torch model, a hasty Keras port of it and a true one, held against each other.

python examples/port_check.py
dream port-check examples/port_check.py:original examples/port_check.py:hasty --batch FILE.npz

Each function is called in a process of its own, so each framework is imported where it is used.
The hasty port looks right, trains, and is another model: its defaults are not torch's.
"""

import numpy as np
from sklearn.datasets import load_digits

import dream


def original():
    """PyTorch."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 10),
    )


def hasty():
    """Keras, line by line."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, strides=2, padding="same"),  # pads behind, not before
            layers.BatchNormalization(),  # epsilon 1e-3, not 1e-5; momentum 0.99, not 0.9
            layers.Activation("gelu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def true():
    """Keras, the same model."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.ZeroPadding2D(1),
            layers.Conv2D(8, 3, strides=2),
            layers.BatchNormalization(epsilon=1e-5, momentum=0.9),
            layers.Activation("gelu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


if __name__ == "__main__":
    images = load_digits().images[:64, :, :, None].astype(np.float32) / 16
    for port in (hasty, true):
        report = dream.port_check(original, port, {"x": images})
        print(report)
        print(f"{port.__name__}: {'equal' if report.equal else 'not equal'}\n")
