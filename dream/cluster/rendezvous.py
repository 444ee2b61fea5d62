"""The client of the store, and the store itself where it falls to this process to serve it."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from dream._errors import ConfigurationError, WorkerFailed
from dream._topology import Cluster, Endpoint
from dream.cluster import settings
from dream.cluster.store import LARGEST_VALUE, PROOF, Store
from dream.cluster.token import proof_of_answer, prove, same

_SECONDS_PER_CALL = 10.0
_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.1
_TRIES = 3
_LONGEST_ANSWER = LARGEST_VALUE + (1 << 14)


class Rendezvous:
    """Small values under names, shared by the ranks of a job. Names are SCOPE/NAME. seconds: for
    each step of a call."""

    def __init__(self, endpoint: Endpoint, token: str, seconds: float = _SECONDS_PER_CALL) -> None:
        self.endpoint = endpoint
        self._seconds = seconds
        self._token = token

    def put(self, key: str, value: bytes) -> None:
        self._call("PUT", key, value)

    def find(self, key: str) -> bytes | None:
        """Return the value, or None where there is none yet."""
        return self._call("GET", key)

    def delete(self, key: str) -> None:
        self._call("DELETE", key)

    def get(self, key: str, *, timeout: float) -> bytes:
        """Return the value, waited for. WorkerFailed after `timeout` seconds."""
        return self.gather([key], timeout=timeout)[key]

    def gather(self, keys: Iterable[str], *, timeout: float) -> dict[str, bytes]:
        """Return the values of all the keys, waited for. `Missing` names those that never came."""
        wanted = list(keys)
        values: dict[str, bytes] = {}
        limit = time.monotonic() + timeout
        wait = _FIRST_WAIT
        while True:
            values |= self._those_there(key for key in wanted if key not in values)
            missing = [key for key in wanted if key not in values]
            if not missing:
                return values
            if time.monotonic() > limit:
                raise Missing(missing, timeout, self.endpoint)
            time.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_WAIT)

    def await_store(self, *, timeout: float) -> None:
        """Return once the store answers; `Missing` where it does not within `timeout` seconds."""
        limit = time.monotonic() + timeout
        while True:
            try:
                self.find("store/there")
                return
            except OSError as error:  # its host's name or route may not be there yet either
                if time.monotonic() > limit:
                    raise Missing(["store"], timeout, self.endpoint) from error
            time.sleep(_LONGEST_WAIT)

    def stay(self) -> socket.socket:
        """Open a connection that stays, with whoever stands by at the store. OSError where it is
        not there."""
        word = prove(self._token, "JOIN", "")
        connection = socket.create_connection(
            (self.endpoint.host, self.endpoint.port), self._seconds
        )
        try:
            connection.sendall(_request("JOIN", word, ""))
            answer = b""
            while b"\r\n\r\n" not in answer:  # nothing follows before this side has spoken
                came = connection.recv(4096)
                if not came:
                    break
                answer += came
            self._value(answer, word)
        except BaseException:
            connection.close()
            raise
        return connection

    def _those_there(self, keys: Iterable[str]) -> dict[str, bytes]:
        """A store that is not served yet counts as one without the key."""
        found: dict[str, bytes] = {}
        for key in keys:
            try:
                value = self.find(key)
            except OSError:
                return found
            if value is not None:
                found[key] = value
        return found

    def _call(self, method: str, key: str, body: bytes = b"") -> bytes | None:
        word = prove(self._token, method, key)
        request = _request(method, word, key, body)
        for _ in range(_TRIES - 1):
            with suppress(ConnectionResetError, BrokenPipeError):
                return self._value(self._answer(request), word)
        return self._value(self._answer(request), word)

    def _answer(self, request: bytes) -> bytes:
        """ConnectionResetError where the store had no time for this call: a crowd of strangers may
        have pushed it out."""
        address = (self.endpoint.host, self.endpoint.port)
        with socket.create_connection(address, self._seconds) as connection:
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                said = answer.read(_LONGEST_ANSWER)
        if not said:
            raise ConnectionResetError(f"no answer from the rendezvous at {self.endpoint}")
        return said

    def _value(self, answer: bytes, word: str) -> bytes | None:
        head, _, body = answer.partition(b"\r\n\r\n")
        status = (head.split(b" ", 2)[1:2] or [b""])[0]
        if status in (b"200", b"404"):
            self._check_shown(head, word, int(status), body)
            return body if status == b"200" else None
        if status == b"403":
            raise ConfigurationError(
                f"The rendezvous refused the token. Received: {self.endpoint}, {settings.TOKEN} of "
                f"{len(self._token)} letters. Set the same {settings.TOKEN} on every host; if "
                "another job is using the port, choose another."
            )
        raise ConnectionError(f"no answer from the rendezvous at {self.endpoint}")

    def _check_shown(self, head: bytes, word: str, status: int, body: bytes) -> None:
        shown = re.search(rf"^{PROOF}: (\w+)\r?$".encode(), head, re.MULTILINE)
        wanted = proof_of_answer(word, self._token.encode(), status, body)
        if shown is None or not same(shown[1].decode("latin-1"), wanted):
            raise ConfigurationError(
                "The process that answers is not this job's rendezvous: it does not know the "
                f"token. Received: {self.endpoint}. Another process is using the port: find out "
                f"which, or choose another port with {settings.RENDEZVOUS_PORT}."
            )


def _request(method: str, word: str, key: str, body: bytes = b"") -> bytes:
    head = f"{method} /{word}/{key} HTTP/1.1\r\nHost: dream\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


class Missing(WorkerFailed):
    """Keys that never came. keys: which, in the order asked."""

    def __init__(self, keys: list[str], timeout: float, endpoint: Endpoint) -> None:
        super().__init__(
            f"Ranks did not check in within {timeout:g} s. Received nothing at {endpoint} for: "
            f"{', '.join(keys)}. Find out why they did not start, or raise "
            f"{settings.STARTUP_SECONDS}."
        )
        self.keys = keys


def rendezvous(cluster: Cluster) -> Rendezvous:
    """Return the job's store; served by this process where its launcher serves none."""
    if cluster.rendezvous is None:
        raise ConfigurationError(
            f"A single process has no rendezvous. Received from {cluster.source}: world size "
            f"{cluster.world_size}. Start it with `dream run -n 2`."
        )
    if cluster.serves_rendezvous:
        _serve(cluster.rendezvous, cluster.token)
    return Rendezvous(cluster.rendezvous, cluster.token)


@cache
def _serve(endpoint: Endpoint, token: str) -> Store:
    """One store a process, for life."""
    return serve(endpoint, token, f"{settings.RENDEZVOUS_PORT} to a free port on every rank")


def serve(endpoint: Endpoint, token: str, remedy: str) -> Store:
    """Start a store at an endpoint; `remedy` is what to set where it is busy."""
    try:
        return Store(endpoint.host, endpoint.port, token)
    except OSError as error:
        what = "is busy" if error.errno == errno.EADDRINUSE else "cannot be listened on"
        if error.errno == errno.EADDRNOTAVAIL:  # torchrun may put rank 0 elsewhere
            remedy = "MASTER_ADDR to the host of rank 0, which this is, or " + remedy
        raise ConfigurationError(
            f"The rendezvous's address {what}. Received: {endpoint} ({error.strerror}). "
            f"Set {remedy}."
        ) from error
