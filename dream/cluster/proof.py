"""Showing that one knows the job's token without saying it: who only holds the port that a store
is expected at learns nothing by which to come in, and is found out by what it cannot answer."""

from __future__ import annotations

import os

_MARK = "~"
"""What no token begins with."""


def ask(token: str, method: str, key: str) -> str:
    """What to say in the token's place. It is good for one answer."""
    once = os.urandom(12).hex()
    return f"{_MARK}{once}.{_mac(token.encode(), once, method, key)}"


def is_shown(word: str) -> bool:
    """Whether a word is such a proof, and not the token itself."""
    return word.startswith(_MARK)


def checks(word: str, token: bytes, method: str, key: str) -> bool:
    """Whether whoever made the word knew the token."""
    once, _, shown = word.removeprefix(_MARK).partition(".")
    return same(shown, _mac(token, once, method, key))


def answer(word: str, token: bytes, status: int, body: bytes) -> str:
    """What shows that the answer to a word is of one who knows the token too."""
    once = word.removeprefix(_MARK).partition(".")[0]
    return _mac(token, once, str(status), body)


def same(one: str | bytes, other: str | bytes) -> bool:
    """In a time that tells nothing of where they differ."""
    import hmac

    return hmac.compare_digest(_bytes(one), _bytes(other))


def _bytes(text: str | bytes) -> bytes:
    return text.encode("latin-1") if isinstance(text, str) else text


def _mac(token: bytes, *said: str | bytes) -> str:
    import hmac  # on use: what only names a store does without its import

    parts = [_bytes(part) for part in said]
    lengths = ",".join(str(len(part)) for part in parts).encode()
    return hmac.new(token, b"\n".join((lengths, *parts)), "sha256").hexdigest()
