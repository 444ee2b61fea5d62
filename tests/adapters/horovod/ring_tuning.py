"""What a rank does whose ring tunes itself."""

from __future__ import annotations

import logging

import dream


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def tuned(framework: str, steps: int) -> list[str]:
    """What was said of the ring."""
    heard = _Heard()
    logging.getLogger("dream").addHandler(heard)
    with dream.strategy("horovod", framework=framework, autotune=True):  # type: ignore[arg-type]
        {"torch": _torch, "tensorflow": _tensorflow}[framework](steps)
    return [line for line in heard.lines if "the ring" in line]


def _torch(steps: int) -> None:
    import torch

    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).square().mean().backward()
        optimizer.step()


def _tensorflow(steps: int) -> None:
    import keras
    import numpy as np

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    model.compile("sgd", "mse")
    x = np.ones((8 * steps, 64), np.float32)
    model.fit(x, x, batch_size=8, verbose=0)


def elsewhere(framework: str) -> str:
    """The refusal on another reduction."""
    own = {"torch": "gloo", "tensorflow": "grpc"}[framework]
    try:
        dream.strategy(
            "mirrored",
            framework=framework,
            reduction=own,
            autotune=True,  # type: ignore[arg-type]
        ).__enter__()
    except dream.ConfigurationError as error:
        return str(error)
    return "nothing was raised"


def run(framework: str, steps: int) -> tuple[str, list[str]]:
    return elsewhere(framework), tuned(framework, steps)
