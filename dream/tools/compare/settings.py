"""Check what is asked of a comparison: what is trained, for how long, under what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Self

from dream._errors import ConfigurationError
from dream.data.partition import check_batch_size
from dream.launch.command import script_command
from dream.tools.compare.tasks import DEFAULT
from dream.tools.jobs import check_enough

_HOW = "Pass --slow RANK:FACTOR, as in --slow 1:4."


@dataclass(frozen=True, slots=True)
class Slow:
    """A rank that is made slow on purpose.

    rank: the one that is slow; factor: how many times as long each of its steps takes, for
    after each it sleeps in proportion to what it took.
    """

    rank: int
    factor: float

    @classmethod
    def of(cls, text: str) -> Self:
        """As the command line has it."""
        rank, _, factor = text.partition(":")
        try:
            found = cls(int(rank), float(factor))
        except ValueError:
            raise ConfigurationError(
                f"This does not describe a slow worker. Received: --slow {text}. {_HOW}"
            ) from None
        if found.rank < 0 or not (found.factor > 1 and isfinite(found.factor)):
            raise ConfigurationError(
                "A slow worker is a rank of at least 0 with a factor above 1. Received: --slow "
                f"{text}. {_HOW}"
            )
        return found

    def __str__(self) -> str:
        return f"rank {self.rank} slowed {self.factor:g}x"


def named_items(option: str, text: str) -> list[str]:
    """Of a comma-separated list; none where the option was not given."""
    found = split_items(text)
    if text and not found:
        raise ConfigurationError(
            f"The list names nothing. Received: {option} {text!r}. Give a name, or remove it."
        )
    return found


def script_asked(words: Sequence[str], **options: object) -> tuple[str, ...]:
    """Return what each rank's interpreter is given; empty where no script is named. options: those
    that mean something for embedded tasks only, None or False where they were not given."""
    if not words:
        return ()
    name, *arguments = words
    module = name == "-m" and bool(arguments)
    if module:
        name, *arguments = arguments
    if name.startswith("-"):
        raise ConfigurationError(f"No such option. Received: {name}. See dream compare --help.")
    for option, value in options.items():
        if value is not None and value is not False:  # 0 is a value
            flag = f"--{option.replace('_', '-')}"
            raise ConfigurationError(
                f"A script defines its own task. Received: {name}, {flag} {value}. Remove one of "
                f"them; an option of the script's own goes behind --: {name} -- {flag} {value}"
            )
    return script_command(name, arguments, module=module)


def split_items(text: str) -> list[str]:
    """Split a comma-separated list into its items. `name=value` goes with the item before it, for a
    strategy's own options are separated by commas too."""
    items: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if items and "=" in part and ":" not in part:
            items[-1] += f",{part}"
        elif part:
            items.append(part)
    return items


@dataclass(frozen=True, slots=True)
class TaskJob:
    """A task's share of the settings.

    batch_size: the global one; seed: of the initial weights and of the order of the samples.
    task: one of tasks.TASKS.
    """

    epochs: int
    batch_size: int
    seed: int = 0
    task: str = DEFAULT


@dataclass(frozen=True, slots=True)
class Settings:
    """How a comparison is run.

    timeout: seconds that a cell may take in a round, start-up included. within: those that all
    rounds but the first may take. script: what each rank's interpreter is given, where a user's
    script is compared; empty for an embedded task. slow: a worker that is slow in rows of their
    own.
    """

    job: TaskJob
    tasks: Mapping[str, str]
    timeout: float
    rounds: int = 1
    script: tuple[str, ...] = ()
    within: float = inf
    slow: Slow | None = None

    @property
    def unit(self) -> str:
        """Of speeds."""
        return "steps/s" if self.script else "samples/s"

    def check(self, n: int) -> None:
        """Refuse what no cell could run."""
        asked = {
            "epochs=": self.job.epochs,
            "timeout=": self.timeout,
            "rounds=": self.rounds,
        }
        check_enough("train", asked)
        if not self.script:
            check_batch_size(self.job.batch_size, n)
