"""Classes by name: what a worker's script has made is made again on a server out of what is there.
Nothing is imported for it, and nothing evaluated."""

from __future__ import annotations

from typing import Any, NoReturn

from dream._errors import Unsupported
from dream._plain import Codec, Unpackable, name_of, pack


def find(name: object, base: type[Any]) -> type[Any]:
    """The subclass of `base` in this process that has this name; the last of several."""
    found = [kind for kind in _subclasses(base) if name_of(kind) == name]
    if not found:
        raise Unsupported(
            f"The server cannot make the workers' optimizer. Received: {name!r:.200}, and no such "
            f"{base.__name__} is there. Define its class in a module that the script imports "
            "before the block, or in the script before the block, so that the server knows it too."
        )
    return found[-1]


def packed(value: object, what: str, codec: Codec | None = None) -> bytes:
    """Unsupported on the worker where something cannot travel. what: whose, for the message."""
    try:
        return pack(value, codec)
    except Unpackable as error:
        refuse(f"{what} with something of type {error.kind} in it")


def refuse(received: str) -> NoReturn:
    raise Unsupported(
        f"The servers cannot run this optimizer: it travels as its class's name and its numbers. "
        f"Received: {received}. Keep None, bool, numbers, strings, tuples, lists, dicts and "
        "tensors in its settings and state; what else it needs, let its class make."
    )


def _subclasses(base: type[Any]) -> list[type[Any]]:
    """In the order of their making, those of one class."""
    found = dict.fromkeys(base.__subclasses__())
    for kind in list(found):
        found |= dict.fromkeys(_subclasses(kind))
    return list(found)
