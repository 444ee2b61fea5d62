"""What TensorBoard's writer in torch keeps private."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any


def event_writers() -> tuple[Any, str]:
    """Return where SummaryWriter gets the writer of its file, each time that it writes."""
    return sys.modules["torch.utils.tensorboard.writer"].SummaryWriter, "_get_file_writer"


def drop_event_file(writer: Any) -> None:
    """Close a file of events that another rank writes too, and remove it."""
    writer.close()
    file = Path(writer.event_writer._file_name)
    file.unlink(missing_ok=True)
    with suppress(OSError):  # it has other files
        file.parent.rmdir()
