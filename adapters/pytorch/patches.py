"""Attributes of classes and modules that are replaced while the block is open."""

from __future__ import annotations

from typing import Any, final


@final
class Patches:
    """A list of replacements, applied and taken back together."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        self._originals.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Put the originals back, last first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)
