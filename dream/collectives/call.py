"""One collective call, as a rank lays it open to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

DIGEST_BITS = 48
MOST_BYTES = 240

Shape = Sequence[int | str]
"""A size that may differ between ranks is written "*"."""


@dataclass(frozen=True, slots=True)
class Call:
    """What must be the same on every rank, in words.

    digest: DIGEST_BITS bits of it, never 0. packed: the words as bytes, at most MOST_BYTES.
    """

    words: str
    digest: int = field(init=False)
    packed: bytes = field(init=False)

    def __post_init__(self) -> None:
        whole = self.words.encode()
        number = int.from_bytes(blake2b(whole, digest_size=DIGEST_BITS // 8).digest(), "little")
        object.__setattr__(self, "digest", number or 1)
        object.__setattr__(self, "packed", whole[:MOST_BYTES])


@dataclass(frozen=True, slots=True)
class Said:
    """A call but for the shapes, which a graph may not know before it runs.

    dtypes: one for each tensor.
    """

    name: str
    dtypes: Sequence[str] = ()
    arguments: Mapping[str, object] = field(default_factory=dict)

    def call(self, shapes: Sequence[Shape]) -> Call:
        """`all_reduce(op='sum') of float32 (2, 3)`."""
        inside = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        things = [
            f"{dtype} {in_words(shape)}"
            for dtype, shape in zip(self.dtypes, shapes, strict=bool(self.dtypes))
        ]
        of = f" of {len(things)} tensors:" if len(things) > 1 else " of" if things else ""
        return Call(f"{self.name}({inside}){of} {', '.join(things)}".rstrip())


def in_words(shape: Shape) -> str:
    sizes = ", ".join(map(str, shape))
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"
