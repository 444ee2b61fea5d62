"""What a strategy's name means: a mesh, an update rule, a choice of reductions, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from dream._errors import ConfigurationError, Unsupported, unknown

Framework = Literal["torch", "tensorflow"]
FRAMEWORKS: tuple[Framework, ...] = ("torch", "tensorflow")


@dataclass(frozen=True, slots=True)
class Option:
    """One keyword of `dream.strategy`.

    kind: the type a value must have; minimum: the least value, for numbers.
    mesh: whether `--strategy` on the command line replaces the script's value.
    frameworks: where it has a meaning; elsewhere it raises `Unsupported`.
    """

    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    default: object
    help: str
    minimum: float | None = None
    mesh: bool = False
    frameworks: tuple[Framework, ...] = FRAMEWORKS

    def check(self, value: object) -> object:
        """The value in the option's own type."""
        if value is None and self.default is None:
            return None
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind:
            raise ConfigurationError(
                f"Option {self.name!r} has the wrong type. Received: {value!r} "
                f"({type(value).__name__}). Give a {self.kind.__name__}: {self.help}"
            )
        if self.minimum is not None and isinstance(value, (int, float)) and value < self.minimum:
            raise ConfigurationError(
                f"Option {self.name!r} is too small. Received: {value!r}. "
                f"Give at least {self.minimum:g}: {self.help}"
            )
        return value

    def parse(self, text: str) -> object:
        """The value written in `NAME:option=text`."""
        words: dict[str, object] = {"true": True, "false": False, "none": None}
        if self.kind is bool or text.lower() == "none":
            return self.check(words.get(text.lower(), text))
        try:
            return self.check(self.kind(text))
        except ValueError:
            return self.check(text)


@dataclass(frozen=True, slots=True)
class Spec:
    """A strategy's name as data.

    mesh: the axes the replicas form, for people ("data").
    reductions: what `reduction=` may be, per framework; the first is what "auto" takes where
        several processes run.
    several: whether it may run in several processes.
    """

    name: str
    summary: str
    mesh: str
    update: Literal["none", "synchronous"]
    reductions: Mapping[Framework, tuple[str, ...]]
    several: bool = True
    options: tuple[Option, ...] = field(default=())

    def option(self, name: str) -> Option:
        table = {option.name: option for option in self.options}
        if name not in table:
            raise unknown(f"option of strategy {self.name!r}", name, table)
        return table[name]

    def resolve(self, given: Mapping[str, object]) -> Mapping[str, object]:
        """Every option with its value: the given ones checked, the others at their default."""
        checked = {name: self.option(name).check(value) for name, value in given.items()}
        return MappingProxyType({o.name: o.default for o in self.options} | checked)

    def check_framework(
        self, given: Mapping[str, object], framework: Framework, reduction: str
    ) -> None:
        """Refuse the options and the reduction that have no meaning in the framework."""
        if reduction not in ("auto", *self.reductions[framework]):
            raise Unsupported(
                f"{framework} cannot use this reduction under {self.name!r}. Received: "
                f"reduction={reduction!r}. Use one of: "
                f"{', '.join(('auto', *self.reductions[framework]))}."
            )
        for name in given:
            option = self.option(name)
            if framework not in option.frameworks:
                raise Unsupported(
                    f"Option {name!r} has no meaning in this framework. Received: "
                    f"{name}={given[name]!r} for {framework}. It works in: "
                    f"{', '.join(option.frameworks)}. Leave it out."
                )

    def check_reduction(self, reduction: str) -> None:
        """Refuse a reduction that no framework has under this name."""
        known = {"auto"}.union(*self.reductions.values())
        if reduction not in known:
            raise unknown(f"reduction of strategy {self.name!r}", reduction, known)


_BUCKETS = (
    Option(
        "bucket_mb", float, None, "size in MB of the buckets that gradients are reduced in",
        minimum=0.001, mesh=True, frameworks=("torch",),
    ),
    Option(
        "find_unused", bool, False, "allow parameters that take no part in a step's loss",
        mesh=True, frameworks=("torch",),
    ),
)  # fmt: skip
_RESYNC = Option(
    "resync", int, None, "steps between broadcasts of rank 0's weights in a job of two frameworks, "
    "whose arithmetic differs in the last bit: 100, or 1 where their optimizers differ by more; 0 "
    "for never. Ranks of one framework are alike to the bit and need none",
    minimum=0, mesh=True,
)  # fmt: skip
_OPTIONS = (*_BUCKETS, _RESYNC)
_SYNCHRONOUS: Mapping[Framework, tuple[str, ...]] = MappingProxyType(
    {
        "torch": ("gloo", "nccl", "horovod", "shared_memory", "hierarchical"),
        "tensorflow": ("grpc", "nccl", "horovod", "shared_memory", "hierarchical"),
    }
)

SPECS: Mapping[str, Spec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            Spec(
                "single", "one device; the oracle every other is held against",
                "one replica", "none", {"torch": (), "tensorflow": ()}, several=False,
            ),
            Spec(
                "mirrored", "synchronous replicas on one host",
                "data", "synchronous", _SYNCHRONOUS, options=_OPTIONS,
            ),
            Spec(
                "multi_worker_mirrored", "synchronous replicas on many hosts",
                "data", "synchronous", _SYNCHRONOUS, options=_OPTIONS,
            ),
            Spec(
                "horovod", "multi_worker_mirrored on the Horovod ring",
                "data", "synchronous", {"torch": ("horovod",), "tensorflow": ("horovod",)},
                options=_OPTIONS,
            ),
        )
    }
)  # fmt: skip


COMMON: Mapping[str, Option] = MappingProxyType(
    {
        "reduction": Option("reduction", str, "auto", "who adds the gradients up", mesh=True),
        "devices": Option("devices", int, None, "devices per process", minimum=1, mesh=True),
    }
)
"""What every strategy takes beside its own options, and `--strategy` may set."""

SEED = Option("seed", int, 0, "what the order of shuffled data depends on", minimum=0)


def find(name: str) -> Spec:
    """The spec of a strategy's name."""
    if name not in SPECS:
        raise unknown("strategy", name, SPECS)
    return SPECS[name]


def parse_request(text: str) -> tuple[str, dict[str, object]]:
    """`NAME[:option=value,...]` as `--strategy` and DREAM_STRATEGY write it: the name and its
    options, `reduction` and `devices` among them, each checked."""
    name, _, rest = text.partition(":")
    spec = find(name)
    given: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigurationError(
                f"A strategy's options are written name=value. Received: {text!r}. "
                "Write it like mirrored:reduction=gloo,bucket_mb=5."
            )
        option = COMMON.get(key) or spec.option(key)
        given[key] = option.parse(value)
    return name, given
