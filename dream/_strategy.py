"""The Strategy that a user holds: the block, and what it offers inside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from dream import _framework, _registry, _spec, cluster
from dream._adapter import Adapter, Communicator, Metric, Plan, Step
from dream._errors import ConfigurationError
from dream._log import logger, speak_as
from dream._spec import Framework, Spec
from dream._topology import Cluster, Topology

_current: ContextVar[Strategy | None] = ContextVar("dream.strategy", default=None)


def current() -> Strategy | None:
    """The strategy whose block we are in, or None."""
    return _current.get()


def strategy(
    name: str | None = None,
    *,
    framework: str | None = None,
    reduction: str = "auto",
    devices: int | None = None,
    seed: int = 0,
    **options: object,
) -> Strategy:
    """A strategy, to be used by `with`.

    name: one of `dream strategies`; None takes `single` in one process, `mirrored` in several on
        one host, `multi_worker_mirrored` on several hosts. `dream run --strategy` overrides it.
    framework: "torch" or "tensorflow"; None goes by what is imported.
    reduction: who adds the gradients up; "auto" takes what fits the devices.
    devices: per process; None takes every GPU, else one CPU.
    seed: what the order of shuffled data depends on, together with the epoch.
    options: the strategy's own; `dream strategies NAME` lists them.
    """
    place = cluster.detect()
    speak_as(place.rank)
    asked = _asked(name, {"reduction": reduction, "devices": devices, **options}, place)
    _check_place(asked, place)
    kind = _choose_framework(framework)
    return Strategy(asked, place, kind, _check_seed(seed))


def _check_seed(seed: object) -> int:
    checked = _spec.SEED.check(seed)
    assert isinstance(checked, int)
    return checked


@dataclass(frozen=True, slots=True)
class _Asked:
    """The name and options after the command line had its say."""

    spec: Spec
    reduction: str
    devices: int | None
    given: Mapping[str, object]


def _asked(name: str | None, given: dict[str, object], place: Cluster) -> _Asked:
    request = cluster.requested_strategy()
    if request is not None:
        name, given = _override(name, given, request)
    spec = _spec.find(name or _default_name(place))
    reduction = str(_spec.COMMON["reduction"].check(given.pop("reduction", "auto")))
    devices = _spec.COMMON["devices"].check(given.pop("devices", None))
    spec.check_reduction(reduction)
    spec.resolve(given)
    assert devices is None or isinstance(devices, int)
    return _Asked(spec, reduction, devices, given)


def _override(
    name: str | None, given: dict[str, object], request: str
) -> tuple[str, dict[str, object]]:
    """The command line's name and mesh options in place of the script's; other options stay."""
    new, theirs = _spec.parse_request(request)
    if name is not None:
        known = {**_spec.COMMON, **{o.name: o for o in _spec.find(name).options}}
        given = {key: value for key, value in given.items() if not _is_mesh(known, key, name)}
        logger.info("strategy %r in place of the script's %r, as --strategy asks", request, name)
    else:
        given = {key: value for key, value in given.items() if key not in _spec.COMMON}
    return new, given | theirs


def _is_mesh(known: Mapping[str, _spec.Option], key: str, name: str) -> bool:
    return (known[key] if key in known else _spec.find(name).option(key)).mesh


def _default_name(place: Cluster) -> str:
    if place.alone:
        return "single"
    return "mirrored" if len(place.hosts) == 1 else "multi_worker_mirrored"


def _check_place(asked: _Asked, place: Cluster) -> None:
    if not asked.spec.several and not place.alone:
        raise ConfigurationError(
            f"Strategy {asked.spec.name!r} runs in one process. Received: world size "
            f"{place.world_size} from {place.source}. Start it with `dream run -n 1`, or name "
            "another strategy."
        )
    if place.alone and asked.reduction != "auto":
        raise ConfigurationError(
            "One process has no other to reduce with. Received: "
            f"reduction={asked.reduction!r}, world size 1. Start it with `dream run -n 2`, or "
            "leave reduction out."
        )


def _choose_framework(framework: str | None) -> Framework | None:
    if framework is not None:
        return _framework.check(framework, "framework=")
    requested = cluster.requested_framework()
    if requested is not None:
        return _framework.check(requested, "DREAM_FRAMEWORK")
    return _framework.imported()


class Strategy:
    """How a model trains. Made by `dream.strategy`, used by `with`.

    Inside the block models, optimizers and data loaders are distributed as they are created, and
    stay so after it.
    """

    def __init__(
        self, asked: _Asked, place: Cluster, framework: Framework | None, seed: int
    ) -> None:
        self._asked = asked
        self._place = place
        self._framework = framework
        self._seed = seed
        self._made: Adapter | None = None
        self._token: Token[Strategy | None] | None = None
        self._watch: _framework.ImportWatch | None = None
        if framework is not None:
            self._check_framework(framework)

    def __repr__(self) -> str:
        return (
            f"Strategy({self.name!r}, framework={self._framework!r}, "
            f"reduction={self._asked.reduction!r}, world_size={self._place.world_size})"
        )

    @property
    def name(self) -> str:
        return self._asked.spec.name

    @property
    def topology(self) -> Topology:
        """This rank's place and device. Frozen."""
        return self._adapter.topology

    @property
    def communicator(self) -> Communicator:
        """all_reduce, broadcast and barrier among the ranks."""
        return self._adapter.communicator

    def __enter__(self) -> Self:
        outer = _current.get()
        if outer is not None:
            raise ConfigurationError(
                f"Blocks cannot be nested. Received: {self.name!r} inside {outer.name!r}. Leave "
                "the first block before the second."
            )
        self._token = _current.set(self)
        try:
            self._begin()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._watch is None:
                self._adapter.exit()
            else:
                self._watch.remove()
        finally:
            self._leave()

    def _begin(self) -> None:
        """Enter the adapter now, or once the first framework is imported inside the block."""
        self._framework = self._framework or _framework.imported()
        if self._framework is None:
            self._watch = _framework.ImportWatch(self._framework_found)
            self._watch.install()
        else:
            self._adapter.enter()

    def _framework_found(self) -> None:
        self._watch = None
        self._framework = _framework.imported()
        self._adapter.enter()

    def _leave(self) -> None:
        self._watch = None
        if self._token is not None:
            _current.reset(self._token)
            self._token = None

    def prepare(self, *objects: Any) -> Any:
        """Models, optimizers and data in; the same, distributed, out in order (one object comes
        back alone). What was made inside the block is distributed already; this takes what was
        made before it, and is the explicit form for those who prefer it."""
        ready = self._adapter.prepare(*objects)
        return ready[0] if len(objects) == 1 else ready

    def train_step(
        self,
        model: Any,
        loss: Callable[..., Any],
        optimizer: Any,
        *,
        weight: Callable[..., Any] | None = None,
    ) -> Step:
        """A callable that trains on one batch: `step(*batch)`, with this rank's share of it.

        loss: `loss(prediction, target)`, the mean over the samples it is given.
        weight: `weight(*batch)`, how many things (tokens, unmasked pixels) `loss` is the mean
            over; the default is samples.
        Returns the global mean loss as a 0-d value, the same on every rank, waited for only when
        it is read. Reading it on one rank alone never blocks.
        """
        return self._adapter.train_step(model, loss, optimizer, weight)

    def evaluate(
        self, model: Any, data: Iterable[Any], metrics: Mapping[str, Metric]
    ) -> dict[str, float]:
        """Means over every sample of `data`, each used once, the same on every rank.

        data: batches `(input, target)`: a loader or dataset made in the block, or one that
            yields every sample on every rank.
        metrics: name -> `function(prediction, target)` giving one value per sample, shape (n,).
        """
        return self._adapter.evaluate(model, data, metrics)

    def weigh(self, loss: Any, count: Any) -> Any:
        """`loss`, this rank's mean over `count` things, scaled so that the gradient is that of
        the mean over the things of all ranks. Call it on every rank, before backward."""
        return self._adapter.weigh(loss, count)

    @property
    def _adapter(self) -> Adapter:
        if self._made is None:
            self._made = self._build()
        return self._made

    def _build(self) -> Adapter:
        framework = self._framework or _framework.imported()
        if framework is None:
            raise ConfigurationError(
                f"No framework is imported yet. Received: framework=None for {self.name!r}. "
                "Import torch, tensorflow or keras first, or pass framework=."
            )
        self._check_framework(framework)
        self._framework = framework
        spec = self._asked.spec
        plan = Plan(
            spec=spec,
            framework=framework,
            cluster=self._place,
            reduction=self._asked.reduction,
            devices=self._asked.devices,
            seed=self._seed,
            options=spec.resolve(self._asked.given),
        )
        adapter: Adapter = _registry.strategy(framework, spec.name)(plan)
        return adapter

    def _check_framework(self, framework: Framework) -> None:
        self._asked.spec.check_framework(self._asked.given, framework, self._asked.reduction)
