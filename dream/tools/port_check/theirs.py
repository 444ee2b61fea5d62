"""Errors of the user's own code, told without dream's part of the way to it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from dream._errors import ConfigurationError, DreamError


@contextmanager
def theirs(place: str) -> Iterator[None]:
    """What the code at `place` raises is a ConfigurationError that quotes it from its first line
    there on; what a framework raises of it, one that has its words. Errors of dream's own code stay
    as they are."""
    try:
        yield
    except DreamError:
        raise
    except (Exception, SystemExit) as error:
        trace = _from(_file(place), error.__traceback__)
        name = type(error).__name__
        if trace is not None or isinstance(error, SyntaxError):
            quoted = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
            raise ConfigurationError(
                f"The code for the model fails. Received: {place!r}, which raises {name}. Mend it:"
                f"\n{quoted}"
            ) from error
        if _is_ours(error.__traceback__):
            raise
        raise ConfigurationError(
            f"The model, its loss and its batch do not go together. Received: {place!r}, which "
            f"ends in {name}: {error}. Train one step with them by themselves first."
        ) from error


def _from(file: str, trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace


def _is_ours(trace: TracebackType | None) -> bool:
    """Whether it is dream's own code that raises."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return name.partition(".")[0] == "dream"


def _file(place: str) -> str:
    where = place.rpartition(":")[0]
    if where.endswith(".py"):
        return str(Path(where).resolve())
    try:
        found = find_spec(where)
    except (ImportError, ValueError):
        return ""
    return "" if found is None else found.origin or ""
