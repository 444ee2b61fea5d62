"""What a strategy's name means: a mesh, an update rule, a choice of reductions, and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from dream._errors import ConfigurationError, DreamError, Unsupported, unknown
from dream.data.parts import check as check_parts
from dream.strategies import options as all_options
from dream.strategies.options import FRAMEWORKS, Framework, Option
from dream.update.outer import check as check_outer
from dream.update.update import check as check_update

__all__ = [
    "COMMON",
    "FRAMEWORKS",
    "RANDOMNESS",
    "SEED",
    "SPECS",
    "Framework",
    "Option",
    "Spec",
    "find",
]


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
    update: Literal["none", "synchronous", "asynchronous"]
    reductions: Mapping[Framework, tuple[str, ...]]
    several: bool = True
    options: tuple[Option, ...] = field(default=())

    def option(self, name: str) -> Option:
        table = {option.name: option for option in self.options}
        if name not in table:
            raise self._not_an_option(name, table)
        return table[name]

    def _not_an_option(self, name: str, table: Mapping[str, Option]) -> DreamError:
        """An option of other strategies, or none at all."""
        takers = [spec.name for spec in SPECS.values() if any(o.name == name for o in spec.options)]
        if not takers:
            return unknown(f"option of strategy {self.name!r}", name, table)
        return Unsupported(
            f"Strategy {self.name!r} does not take this option. Received: {name!r}. "
            f"It is taken by: {', '.join(takers)}. "
            f"Options here: {', '.join(sorted(table)) or 'none'}."
        )

    def resolve(self, given: Mapping[str, object]) -> Mapping[str, object]:
        """Every option with its value: the given ones checked, the others at their default."""
        checked = {name: self.option(name).check(value) for name, value in given.items()}
        options = {o.name: o.default for o in self.options} | checked
        check_update(options)
        check_outer(options)
        check_parts(options)
        return MappingProxyType(options)

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
            self.option(name).check_framework(given[name], framework)

    def check_reduction(self, reduction: str) -> None:
        """Refuse a reduction that no framework has under this name."""
        known = {"auto"}.union(*self.reductions.values())
        if reduction not in known:
            raise unknown(f"reduction of strategy {self.name!r}", reduction, known)


_SYNCHRONOUS: Mapping[Framework, tuple[str, ...]] = MappingProxyType(
    {
        "torch": ("gloo", "nccl", "horovod", "shared_memory", "hierarchical"),
        "tensorflow": ("grpc", "nccl", "horovod", "shared_memory", "hierarchical"),
    }
)

_OWN: Mapping[Framework, tuple[str, ...]] = MappingProxyType(
    {"torch": ("gloo", "nccl"), "tensorflow": ()}
)
"""Where the framework's own parts move more than gradients."""

SPECS: Mapping[str, Spec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            Spec(
                "single", "one device; the oracle every other is held against",
                "one replica", "none", {"torch": (), "tensorflow": ()}, several=False,
                options=(all_options.INPUT, *all_options.UPDATE),
            ),
            Spec(
                "mirrored", "synchronous replicas on one host",
                "data", "synchronous", _SYNCHRONOUS, options=all_options.REPLICAS,
            ),
            Spec(
                "multi_worker_mirrored", "synchronous replicas on many hosts",
                "data", "synchronous", _SYNCHRONOUS, options=all_options.REPLICAS,
            ),
            Spec(
                "horovod", "multi_worker_mirrored on the Horovod ring",
                "data", "synchronous", {"torch": ("horovod",), "tensorflow": ("horovod",)},
                options=all_options.REPLICAS,
            ),
            Spec(
                "data_parallel", "replicas on the devices of one process, the loss on each",
                "data", "synchronous", {"torch": (), "tensorflow": ()}, several=False,
                options=all_options.UPDATE,
            ),
            Spec(
                "model_parallel", "the model is split, by layers, as a pipeline or by tensors",
                "model", "synchronous", _OWN, options=all_options.MODEL,
            ),
            Spec(
                "hybrid", "a split model, replicated: a mesh of data x model",
                "data x model", "synchronous", _OWN, options=all_options.HYBRID,
            ),
            Spec(
                "sharded", "parameters, gradients and optimizer state in shards, one a rank",
                "data", "synchronous", _OWN, options=all_options.SHARDED,
            ),
            Spec(
                "parameter_server", "workers that do not wait for one another, and servers",
                "workers and servers", "asynchronous", {"torch": (), "tensorflow": ()},
                options=all_options.SERVERS,
            ),
            Spec(
                "local_sgd", "replicas step alone, and are averaged every few steps",
                "data", "synchronous", _SYNCHRONOUS, options=all_options.LOCAL,
            ),
        )
    }
)  # fmt: skip


COMMON, SEED, RANDOMNESS = all_options.COMMON, all_options.SEED, all_options.RANDOMNESS


_added: dict[str, Spec] = {}


def add(spec: Spec) -> None:
    """Have a strategy's name known that is none of dream's own. Done again it takes the last."""
    if spec.name in SPECS:
        raise ConfigurationError(
            f"This name belongs to a built-in strategy. Received: {spec.name!r}. Choose another."
        )
    _added[spec.name] = spec


def find(name: str) -> Spec:
    """The spec of a strategy's name."""
    found = SPECS.get(name) or _added.get(name)
    if found is None:
        raise unknown("strategy", name, [*SPECS, *_added])
    return found


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
                f"Strategy options must be written name=value. Received: {text!r}. Write it like "
                "mirrored:reduction=gloo,bucket_mb=5."
            )
        option = COMMON.get(key) or spec.option(key)
        given[key] = option.parse(value)
    spec.check_reduction(str(given.get("reduction", "auto")))
    return name, given
