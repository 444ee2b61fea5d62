"""From a log of thousands of lines, the few that say what went wrong."""

from __future__ import annotations

import re
from pathlib import Path

from dream._errors import NotInstalled

_ERROR = re.compile(
    r"(?<![\w-])error: (?!subprocess-exited)|CMake Error|undefined reference to"
    r"|No space left on device|ModuleNotFoundError|DO NOT MATCH THE HASHES|ERROR: "
)
_COMMAND = re.compile(r"^\s*(cd \S+ && |/\S*/(c\+\+|g\+\+|clang\+\+|cmake|ld) )")
_KILLED = re.compile(r"Killed signal|signal 9|cannot allocate memory", re.IGNORECASE)
_WIDTH = 240


def excerpt(lines: list[str], errors: int = 3, before: int = 2, after: int = 4) -> str:
    """The first errors with the lines around them; the tail where nothing looks like an error."""
    told = [line.rstrip()[:_WIDTH] for line in lines if line.strip() and not _COMMAND.match(line)]
    hits = [index for index, line in enumerate(told) if _ERROR.search(line)][:errors]
    if not hits:
        return "\n".join(told[-15:])
    shown = sorted(
        {near for hit in hits for near in range(hit - before, hit + after + 1)}
        & set(range(len(told)))
    )
    return "\n".join(told[index] for index in shown)


def failed(what: str, log: Path, lines: list[str]) -> NotInstalled:
    """The error to raise when a step of the build did not end well."""
    advice = f"The whole log: {log}"
    if any(_KILLED.search(line) for line in lines):
        advice = f"The compiler ran out of memory: give --jobs 1. {advice}"
    return NotInstalled(f"{what} failed. Received:\n\n{excerpt(lines)}\n\n{advice}")
