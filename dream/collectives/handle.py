"""What a call that returns at once hands out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, final


@final
class Handle:
    """A send or receive on its way.

    Not waiting for it is allowed; an error is then lost, save that the other rank has it too.
    """

    def __init__(self, future: Future[Any], finish: Callable[[Any], Any]) -> None:
        self._future = future
        self._finish = finish

    def done(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return self._future.done()

    def wait(self, timeout: float | None = None) -> Any:
        """What came, or None for a send, once it is over. Raises what went wrong; TimeoutError
        after `timeout` seconds, and it may then be waited for again."""
        return self._finish(self._future.result(timeout))
