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


def tuned(steps: int) -> list[str]:
    """What was said of the ring."""
    import torch

    heard = _Heard()
    logging.getLogger("dream").addHandler(heard)
    with dream.strategy("horovod", framework="torch", autotune=True):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
    return [line for line in heard.lines if "the ring" in line]


def elsewhere() -> str:
    """The refusal on another reduction."""
    try:
        dream.strategy("mirrored", framework="torch", reduction="gloo", autotune=True).__enter__()
    except dream.ConfigurationError as error:
        return str(error)
    return "nothing was raised"


def run(steps: int) -> tuple[str, list[str]]:
    return elsewhere(), tuned(steps)
