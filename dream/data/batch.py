"""What a batch of an explicit step is."""

from __future__ import annotations

from typing import Any

from dream._errors import ConfigurationError


def split(batch: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
    """A batch is the model's inputs and then the target."""
    if len(batch) < 2:
        raise ConfigurationError(
            f"A batch is the model's inputs and then the target. Received: {len(batch)} parts. "
            "Call step(x, y), or step(*batch)."
        )
    return batch[:-1], batch[-1]
