"""A model in a process of its own: started, asked and ended by the one who wants to know."""

from __future__ import annotations

import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, final

from dream._errors import ConfigurationError, NotInstalled, Unsupported, WorkerFailed
from dream.launch.environment import lone_environment
from dream.launch.forks.foresight import IMPORTS, frameworks_of
from dream.launch.guard import Guard, temporary_folder
from dream.launch.output import Output
from dream.launch.process import Process

_START_SECONDS = 60.0
_TOLD = (ConfigurationError, Unsupported, NotInstalled)


@final
class ModelProcess:
    """The asking end of another process. who: "the old model", for messages."""

    def __init__(self, who: str, process: Process, connection: Connection, timeout: float) -> None:
        self.who = who
        self._process = process
        self._connection = connection
        self._timeout = timeout

    def ask(self, name: str, *arguments: Any) -> None:
        """Have a method there called; `answer` gives what came of it."""
        try:
            self._connection.send((name, arguments))
        except OSError as error:
            raise self._gone() from error

    def answer(self) -> Any:
        """Raises what dream raised there; WorkerFailed for any other error, for a process that
        ended, and for one that took longer than the timeout."""
        if not self._connection.poll(self._timeout):
            raise WorkerFailed(
                f"{self.who} did not answer. Received: nothing for {self._timeout:g} s. Use a "
                "smaller batch, or a longer --timeout."
            )
        try:
            kind, *found = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error
        if kind == "gave":
            return found[0]
        if kind == "told":
            error_type, message = found
            raise error_type(f"{self.who}: {message}")
        name, trace = found
        raise WorkerFailed(f"{self.who} raised {name}.\n{trace}", traceback=trace)

    def get(self, name: str, *arguments: Any) -> Any:
        """`ask` and `answer`."""
        self.ask(name, *arguments)
        return self.answer()

    def _gone(self) -> WorkerFailed:
        self._process.output.finish(1.0)
        text = self._process.output.tail
        return WorkerFailed(f"{self.who}: its process ended.\n{text}", traceback=text)


@contextmanager
def open_process(
    who: str, module: str, place: str, timeout: float = 300.0, backend: str | None = None
) -> Iterator[ModelProcess]:
    """Start a process that is there while the block lasts.

    module: what runs there, which calls `serve` where its arguments are "serve" and an address.
    place: where the model's function is, whose imports a fork server has ready.
    timeout: seconds that one answer may take.
    backend: Keras's, else the user's own.
    """
    with temporary_folder("dream-") as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(folder / "s")
        listener.bind(address)
        listener.listen(1)
        process = Process(
            0,
            ("module", module, "serve", address),
            lone_environment({**_imports(place), **_backend(backend)}),
            Output(0, show=False, log_dir=None),
        )
        guard = Guard()
        guard.add(process.group)
        process.watch(lambda _: None)
        try:
            with _connected(listener, process, who) as connection:
                yield ModelProcess(who, process, connection, timeout)
        finally:
            process.kill()
            guard.close()
            process.output.finish(1.0)


def _imports(place: str) -> dict[str, str]:
    where = place.rpartition(":")[0]
    kind = "script" if where.endswith(".py") else "module"
    return {IMPORTS: ",".join(frameworks_of(["", kind, where]))}


def _backend(name: str | None) -> dict[str, str]:
    return {} if name is None else {"KERAS_BACKEND": name}


def _connected(listener: socket.socket, process: Process, who: str) -> Connection:
    listener.settimeout(0.2)
    limit = time.monotonic() + _START_SECONDS
    while process.running and time.monotonic() < limit:
        try:
            return Connection(listener.accept()[0].detach())
        except TimeoutError:
            continue
    process.output.finish(1.0)
    raise WorkerFailed(f"The process of {who} did not start.\n{process.output.tail}")


def serve(address: str, asked: object) -> None:
    """Connect to the one who asks, at a socket's path, and answer until told to end: ("gave",
    result), ("told", kind, message) or ("raised", kind, traceback).

    asked: its methods are what can be asked.
    """
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(address)
    with Connection(stream.detach()) as connection:
        while (question := _next(connection)) is not None:
            name, arguments = question
            try:
                connection.send(("gave", getattr(asked, name)(*arguments)))
            except _TOLD as error:
                kind = next(kind for kind in _TOLD if isinstance(error, kind))
                connection.send(("told", kind, str(error)))
            except Exception as error:
                last = "".join(traceback.format_exception(error))
                connection.send(("raised", type(error).__name__, last))


def _next(connection: Connection) -> Any:
    try:
        return connection.recv()
    except EOFError:
        return None  # the asker is gone
