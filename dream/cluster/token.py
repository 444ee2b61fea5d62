"""The word that whoever joins a job must know.

`dream run` makes one up for each job. Under another launcher it is DREAM_TOKEN where that is set;
else it is made of a secret that strangers cannot read, and of what names the job: a secret of the
launcher's own, or on one host a file that this user alone can read. A name alone, a port say, can
be guessed, and is never a token.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from dream._errors import ConfigurationError
from dream.cluster import _names, _secret

_FIT = re.compile(r"[A-Za-z0-9_-]{8,256}")
_LAUNCHERS = "_HOROVOD_SECRET_KEY"
"""Where Horovod's launchers on Spark leave a secret of the job's, for its processes alone."""
_SHORTEST = 32


def token_of(
    environ: Mapping[str, str], source: str, names: Iterable[object], *, one_host: bool
) -> str:
    """The token of a job under somebody else's launcher, the same on each of its ranks.

    names: what tells this job from others. ConfigurationError where DREAM_TOKEN is unfit, or is
    all that several hosts could have in common and is not set.
    """
    if environ.get(_names.TOKEN):
        return checked(environ[_names.TOKEN])
    launchers = environ.get(_LAUNCHERS, "")
    if len(launchers) >= _SHORTEST:
        return _made(launchers.encode(), names)
    if one_host:
        return _made(_secret.users(environ), names)
    raise ConfigurationError(_wanted(f"{source} carries no secret from host to host", "none"))


def checked(token: str) -> str:
    """DREAM_TOKEN as the user set it. ConfigurationError where it is missing or unfit."""
    if not _FIT.fullmatch(token):
        raise ConfigurationError(
            _wanted("Several hosts have nothing else in common", "none")
            if not token
            else _wanted("It is the word that keeps strangers out", "an unfit one")
        )
    return token


def _wanted(why: str, received: str) -> str:
    return (
        f"{why}, so the ranks need one common {_names.TOKEN}: a secret of at least 8 letters, "
        f"digits, - or _. Received: {received}. On every host: export "
        f"{_names.TOKEN}={os.urandom(16).hex()}"
    )


def _made(secret: bytes, names: Iterable[object]) -> str:
    import hmac  # on use: `dream run` does without its import

    return hmac.new(secret, "\n".join(map(str, names)).encode(), "sha256").hexdigest()
