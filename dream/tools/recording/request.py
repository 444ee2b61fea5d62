"""What `dream verify` asks a rank: how far to run, what to write down, what to change."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Change = Literal["no dropout", "fixed statistics", "alike", "reordered"]
"""no dropout: none is dropped. fixed statistics: BatchNorm normalises by its running statistics.
alike: all ranks draw the same random numbers. reordered: the model works on the parts of a batch at
once, one part's samples behind the other's."""


@dataclass(frozen=True, slots=True)
class Request:
    """folder: where the record goes. steps: after how many the script ends.

    parts: in how many parts the model works on each batch, one after the other.
    """

    folder: Path
    steps: int
    changes: tuple[Change, ...] = ()
    parts: int = 1

    @property
    def text(self) -> str:
        """As the environment carries it."""
        return json.dumps(asdict(self) | {"folder": str(self.folder)})

    @classmethod
    def of(cls, text: str) -> Request:
        said = json.loads(text)
        return cls(Path(said["folder"]), said["steps"], tuple(said["changes"]), said["parts"])
