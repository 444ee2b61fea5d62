"""`dream run` on a host that was reached by ssh. What it is to run comes over its standard input,
the token too, so that no command line shows it; then signals; its end ends the job here.

On stderr it says, by a word that it was given, that it has begun, and the exit code at its end:
ssh's own exit codes are those of scripts, too.

Usage: python -m dream.launch.engines.remote < CHANNEL
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, final


def main() -> None:
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.set_inheritable(channel, False)
    lines = Lines(channel)
    told = lines.next()
    if told is None:
        raise SystemExit(1)
    asked = json.loads(told)
    _say(asked["word"], "")
    try:
        _run(asked, lines)
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        _say(asked["word"], str(end.code or 0))
        raise


def _say(word: str, text: str) -> None:
    with suppress(OSError):
        os.write(2, f"{word} {text}\n".encode())


def _run(asked: dict[str, Any], lines: Lines) -> None:
    try:
        os.chdir(asked["folder"])
    except OSError as error:
        print(f"dream run: this host has no folder {asked['folder']} ({error.strerror}): "
            "the script must be at the same path on every host", file=sys.stderr)  # fmt: skip
        raise SystemExit(2) from None
    os.environ |= asked["environ"]
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    from dream.cli import main as dream

    dream(asked["command"])


@final
class Lines:
    """Lines off a descriptor, none buffered by Python."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = b""

    def next(self) -> str | None:
        """Return the next line; None at the end."""
        while b"\n" not in self._received:
            came = os.read(self._descriptor, 1 << 16)
            if not came:
                return None
            self._received += came
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()


def _listen(lines: Lines) -> None:
    """Pass signals on. Who started this is gone where the channel ends: then ranks may save."""
    while (line := lines.next()) is not None:
        os.kill(os.getpid(), int(line))
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
