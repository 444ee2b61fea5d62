"""Where a pass over data stands: said in global batches, so it is the same for any number of
replicas, and another number of them can go on from there."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from dream._errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Position:
    """epoch: which pass. batches, samples: of it, handed out so far. digest: of what was handed
    out, where the order is not dream's; 0 where it is."""

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    digest: int = 0

    def after(self, samples: int, digest: int = 0) -> Self:
        """One global batch further on."""
        return replace(
            self, batches=self.batches + 1, samples=self.samples + samples, digest=digest
        )

    def state(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """As a dict of plain numbers. facts: of the data, which must be the same when it is read
        on."""
        return {**asdict(self), **facts}

    @classmethod
    def of(cls, state: Mapping[str, Any], facts: Mapping[str, Any]) -> Self:
        """What `state` made, for data of the same facts."""
        names = [field.name for field in fields(cls)]
        missing = [name for name in (*names, *facts) if name not in state]
        if missing:
            raise ConfigurationError(
                "This is no state of such data. Received: a dict without "
                f"{', '.join(map(repr, missing))}. Give what state_dict() gave."
            )
        other = {name: state[name] for name, own in facts.items() if state[name] != own}
        if other:
            raise ConfigurationError(
                "This state is of other data, so samples would be left out or come twice. "
                f"Received: {_told(other)} in the state, {_told(facts, other)} here. Read the "
                "same data with the same options."
            )
        return cls(**{name: int(state[name]) for name in names})


def chained(digest: int, said: bytes) -> int:
    """The digest of what a digest is of and one thing more."""
    return zlib.crc32(said, digest)


def check_read_again(found: int, position: Position) -> None:
    """Whether what was left out, since it was handed out before, is what was handed out.

    found: the digest of it.
    """
    if found != position.digest:
        raise ConfigurationError(
            "The data comes in another order than when its state was kept, so samples would be "
            f"left out or come twice. Received: digest {found} of the first {position.batches} "
            f"batches, {position.digest} in the state. Seed what draws or shuffles them, or leave "
            "the order to shuffle=True."
        )


def check_long_enough(read: int, position: Position) -> None:
    """Whether as many batches as were handed out before could be left out."""
    if read < position.batches:
        raise ConfigurationError(
            "The data has ended before the place where its state was kept. Received: "
            f"{read} batches, {position.batches} in the state. Read the same data."
        )


def _told(facts: Mapping[str, Any], only: Mapping[str, Any] | None = None) -> str:
    return ", ".join(f"{name}={facts[name]!r}" for name in (facts if only is None else only))
