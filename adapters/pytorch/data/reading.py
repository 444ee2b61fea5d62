"""What a pass over a loader reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, final

Reading = Literal["by gradients", "share", "whole"]
"""by gradients: this rank's part where they are on, every sample where they are off. share: this
rank's part. whole: every sample, in the order that counts epochs."""


@final
class Reads:
    """now: what a pass that starts now reads."""

    def __init__(self) -> None:
        self.now: Reading = "by gradients"

    @contextmanager
    def told(self, reading: Reading) -> Iterator[None]:
        """Passes that start inside read so, whether gradients are on or off."""
        self.now = reading
        try:
            yield
        finally:
            self.now = "by gradients"
