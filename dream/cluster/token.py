"""The word that whoever joins a job must know: how it is made, checked, and shown unsaid.

`dream run` makes one up for each job. Under another launcher it is DREAM_TOKEN where that is set;
else it is made of a secret that strangers cannot read, and of what names the job: a secret of the
launcher's own, or on one host a file that this user alone can read. A name alone, a port say, can
be guessed, and is never a token.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache

from dream._errors import ConfigurationError
from dream.cluster import settings

_FIT = re.compile(r"[A-Za-z0-9_-]{8,256}")
_LAUNCHERS = "_HOROVOD_SECRET_KEY"
"""Where Horovod's launchers on Spark leave a secret of the job's, for its processes alone."""
_SHORTEST = 32


def token_of(
    environ: Mapping[str, str],
    source: str,
    names: Iterable[object],
    *,
    one_host: bool,
    at_home: bool = False,
) -> str:
    """Return the token of a job under somebody else's launcher, the same on each of its ranks.

    names: what tells this job from others. at_home: several hosts may have the user's home folder
    in common, as clusters do; where they have not, the ranks' tokens differ and the first call of
    the store says so. ConfigurationError where DREAM_TOKEN is unfit, or is all that several hosts
    could have in common and is not set.
    """
    if environ.get(settings.TOKEN):
        return checked(environ[settings.TOKEN])
    secret = environ.get(_LAUNCHERS, "").encode()
    if len(secret) < _SHORTEST:
        if not one_host and not at_home:
            raise _wanted(f"{source} does not pass a secret from host to host", "none")
        secret = users_secret(environ) if one_host else home_secret(environ)
    import hmac  # on use: `dream run` does without its import

    return hmac.new(secret, "\n".join(map(str, names)).encode(), "sha256").hexdigest()


def checked(token: str) -> str:
    """Return DREAM_TOKEN as the user set it. ConfigurationError where it is missing or unfit."""
    if not token:
        raise _wanted("Several hosts share nothing that could serve as a secret", "none")
    if not _FIT.fullmatch(token):
        raise _wanted("It keeps other users and jobs out", "an unfit one")
    return token


def _wanted(why: str, received: str) -> ConfigurationError:
    return ConfigurationError(
        f"{why}, so all ranks need the same {settings.TOKEN}: a secret of at least 8 letters, "
        f"digits, - or _. Received: {received}. On every host: export "
        f"{settings.TOKEN}={os.urandom(16).hex()}"
    )


# A secret of this user's on this host, in a file that nobody else can read. It is made by the first
# process that asks, whole or not at all, so that ranks that start at one time agree; and it stays,
# so that nobody waits and no file is ever out of date.

_FILE = "secret"
_BYTES = 32
_OTHERS = 0o077
"""What group and others may do with a file or folder: here nothing."""


def users_secret(environ: Mapping[str, str]) -> bytes:
    """Return this user's secret on this host. ConfigurationError where the folder or the file is
    not this user's own, or others could read it."""
    return _read_secret(_folder(environ.get("XDG_RUNTIME_DIR", "")))


def home_secret(environ: Mapping[str, str]) -> bytes:
    """Return this user's secret on all hosts that have the home folder in common, likewise."""
    home = environ.get("HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117
        raise _unusable("no home folder", f"HOME={home!r}")
    return _read_secret(os.path.join(home, ".dream"))  # noqa: PTH118


@cache
def _read_secret(path: str) -> bytes:
    """Read it once a process: the folder may go while a job runs, as at the user's logout."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)  # noqa: PTH102 - pathlib's import would cost each start
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(path, error.strerror) from error
    try:
        _check(os.fstat(folder), path)
        return _read_file(folder, path)
    except OSError as error:
        raise _unusable(f"{path}/{_FILE}", error.strerror) from error
    finally:
        os.close(folder)


def _folder(runtime: str) -> str:
    """Choose the user's own folder for such things, where the system made one; else one among the
    temporary ones, under a name that another user may have taken, which is found out."""
    if os.path.isabs(runtime):  # noqa: PTH117
        with suppress(OSError):
            facts = os.lstat(runtime)
            if stat.S_ISDIR(facts.st_mode) and _is_ours(facts):
                return os.path.join(runtime, "dream")  # noqa: PTH118
    import tempfile

    try:
        return os.path.join(tempfile.gettempdir(), f"dream-{os.getuid()}")  # noqa: PTH118
    except OSError as error:
        raise _unusable("no folder for temporary files", error.strerror) from error


def _read_file(folder: int, path: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(_FILE, flags, dir_fd=folder)
    except FileNotFoundError:
        _make_file(folder)
        file = os.open(_FILE, flags, dir_fd=folder)
    try:
        facts = os.fstat(file)
        _check(facts, f"{path}/{_FILE}")
        secret = os.read(file, _BYTES + 1) if stat.S_ISREG(facts.st_mode) else b""
    finally:
        os.close(file)
    if len(secret) != _BYTES:
        raise _unusable(f"{path}/{_FILE}", f"not a file of {_BYTES} bytes")
    return secret


def _make_file(folder: int) -> None:
    """Link a file of this process's own under the name: the first to do so has made it, and the
    others take that one."""
    part = f"{os.getpid()}-{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(part, flags, 0o600, dir_fd=folder)
    try:
        os.write(file, os.urandom(_BYTES))
        os.fsync(file)
        with suppress(FileExistsError):
            os.link(part, _FILE, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(file)
        os.unlink(part, dir_fd=folder)


def _check(facts: os.stat_result, path: str) -> None:
    if facts.st_uid != os.getuid():
        raise _unusable(path, f"owned by user {facts.st_uid}, not {os.getuid()}")
    if not _is_ours(facts):
        raise _unusable(path, f"open to others, mode {stat.S_IMODE(facts.st_mode):04o}")


def _is_ours(facts: os.stat_result) -> bool:
    return facts.st_uid == os.getuid() and not facts.st_mode & _OTHERS


def _unusable(path: str, why: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"There is no place to keep a secret that other users cannot read. Received: {path} "
        f"({why}). Remove it, or give every rank the same secret: export "
        f"{settings.TOKEN}={os.urandom(16).hex()}"
    )


# A proof stands in the token's place: who only holds the port that a store is expected at learns
# nothing by which to come in, and is found out by what it cannot answer.

_MARK = "~"
"""What no token begins with."""


def prove(token: str, method: str, key: str) -> str:
    """Return what to say in the token's place. It is good for one answer."""
    once = os.urandom(12).hex()
    return f"{_MARK}{once}.{_mac(token.encode(), once, method, key)}"


def is_proof(word: str) -> bool:
    """Whether a word is such a proof, and not the token itself."""
    return word.startswith(_MARK)


def proves(word: str, token: bytes, method: str, key: str) -> bool:
    """Whether whoever made the word knew the token."""
    once, _, shown = word.removeprefix(_MARK).partition(".")
    return same(shown, _mac(token, once, method, key))


def proof_of_answer(word: str, token: bytes, status: int, body: bytes) -> str:
    """Return what shows that the answer to a proof is of one who knows the token too."""
    once = word.removeprefix(_MARK).partition(".")[0]
    return _mac(token, once, str(status), body)


def same(one: str | bytes, other: str | bytes) -> bool:
    """Compare in a time that tells nothing of where they differ."""
    import hmac

    return hmac.compare_digest(_bytes(one), _bytes(other))


def _bytes(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text


def _mac(token: bytes, *said: str | bytes) -> str:
    import hmac  # on use: what only names a store does without its import

    parts = [_bytes(part) for part in said]
    lengths = ",".join(str(len(part)) for part in parts).encode()
    return hmac.new(token, b"\n".join((lengths, *parts)), "sha256").hexdigest()
