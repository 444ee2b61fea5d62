"""Make what stands on the ranks of a job: a strategy's adapter, once it is known which framework it
is for (what is imported leaves no choice, or the script makes or uses the first thing of one), and
a communicator to call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from dream import _framework, _observers, cluster, stall
from dream._adapter import Adapter, Plan
from dream._errors import ConfigurationError, Unsupported
from dream._log import speak_as
from dream._topology import Cluster
from dream.collectives import Communicator, Loop, Members
from dream.launch.joined import last_words
from dream.launch.joined.threads import share_cores
from dream.launch.undivided import divided
from dream.mixed import ranks
from dream.strategies import choice as choices
from dream.strategies import registry
from dream.strategies.choice import Choice, Randomness
from dream.strategies.spec import Framework


def adapter(
    choice: Choice, randomness: Randomness, place: Cluster, framework: Framework
) -> Adapter:
    """Return what a choice of strategy comes to in a framework, once the ranks have agreed on
    it."""
    spec, seed = choice.spec, randomness.seed
    words = ranks.block_words(spec.name, choice.reduction, seed, choice.given)
    everybody = ranks.frameworks(place, framework, words)
    reduction = ranks.reduction(choice.reduction, everybody)
    if ranks.is_mixed(everybody) and choice.given.get("shares", "equal") != "equal":
        raise Unsupported(
            "Ranks of two frameworks must have equal shares. Received: "
            f"shares={choice.given['shares']!r}. Remove it."
        )
    for each in dict.fromkeys(everybody):
        spec.check_framework(choice.given, each, reduction)
    options = spec.resolve(choice.given)
    plan = Plan(
        spec=spec,
        framework=framework,
        cluster=place,
        reduction=reduction,
        devices=choice.devices,
        seed=0 if seed is None and ranks.is_mixed(everybody) else seed,
        randomness=randomness.draws,
        options=options,
        resyncs=ranks.resyncs(everybody, options),
    )
    divided.set()
    stall.watch(place)
    last_words.listen(place)
    made = registry.strategy(framework, spec.name)(plan)
    if isinstance(made, Adapter):
        return made
    found: Adapter = registry.load(registry.ADAPTERS[framework])(made)
    return found


def communicator(
    reduction: str = "auto", *, framework: str | None = None, check: bool = True
) -> Communicator:
    """The ranks of this job, to call collectives on.

    reduction: the transport: gloo, nccl or horovod with torch; grpc, nccl or horovod with
        TensorFlow; "auto" takes what fits the tensors' device, and the ring where some ranks have
        torch and others TensorFlow.
    framework: "torch" or "tensorflow", which has the transport; None goes by what is imported.
    check: whether the ranks compare what they are about to do before each call.
    """
    place = cluster.detect()
    speak_as(place.rank)
    share_cores(place)
    chosen = choices.framework(framework) or _framework.of_script()
    if chosen is None and _framework.several():
        raise _framework.undecided(f"communicator({reduction!r})")
    if chosen is None:
        raise ConfigurationError(
            "A communicator needs a framework's transport. Received: framework=None, and neither "
            "torch nor tensorflow imported. Import one first, or pass framework='torch'."
        )
    everybody = ranks.frameworks(place, chosen, f"communicator({reduction!r}, check={check})")
    reduction = ranks.reduction(reduction, everybody)
    connect = registry.reduction(chosen, reduction)
    divided.set()
    stall.watch(place)
    last_words.listen(place)
    wire = Loop() if place.alone else connect(place, reduction)
    return Communicator(wire, registry.tensors(chosen), Members.all_of(place), check=check)


@final
class PendingAdapter:
    """Stands for a strategy's adapter until its framework is known.

    framework: None until something says it.
    """

    def __init__(
        self, choice: Choice, place: Cluster, framework: Framework | None, randomness: Randomness
    ) -> None:
        self._choice, self._place, self._randomness = choice, place, randomness
        self.framework = framework
        self._made: Adapter | None = None
        self._awaited: _framework.FirstUse | None = None
        if framework is not None and not cluster.frameworks_differ():
            choice.spec.check_framework(choice.given, framework, choice.reduction)

    def enter(self) -> None:
        """Open the block: now, or when the framework is known."""
        divided.set()
        self.framework = self.framework or _framework.imported()
        if self.framework is None:
            self._awaited = _framework.FirstUse(self._decided)
            self._awaited.start()
        else:
            self._enter()

    def exit(self) -> None:
        """Close it, where it has been opened."""
        if self._awaited is None and not _observers.plain():
            self.get().exit()

    def rest(self) -> None:
        """Wait for no framework any longer."""
        if self._awaited is not None:
            self._awaited.stop()
        self._awaited = None

    def get(self) -> Adapter:
        """The adapter; an error where nothing has said yet for which framework."""
        if self._made is None:
            if self._awaited is not None and (named := _framework.of_script()) is not None:
                self._decided(named)
            self._made = self._made or self._make()
        return self._made

    def decide_by(self, objects: Iterable[object]) -> None:
        """Go by these, where nothing has said so yet."""
        if self.framework is None and (found := _framework.of(*objects)) is not None:
            if self._awaited is not None:
                self._decided(found)
            else:
                self.framework = found

    def _decided(self, framework: Framework) -> None:
        if self._awaited is not None:
            self.rest()
            self.framework = framework
            self._enter()

    def _enter(self) -> None:
        for observer in _observers.registered:
            assert self.framework is not None
            observer.entering(self.get(), self.framework, self._choice.spec.name)
        if not _observers.plain():
            self.get().enter()

    def _make(self) -> Adapter:
        name = self._choice.spec.name
        framework = self.framework or _framework.imported() or _framework.of_script()
        if framework is None and _framework.several():
            raise _framework.undecided(repr(name))
        if framework is None:
            raise ConfigurationError(
                f"No framework is imported yet. Received: framework=None for {name!r}. "
                "Import torch, tensorflow or keras first, or pass framework=."
            )
        self.framework = framework
        return adapter(self._choice, self._randomness, self._place, framework)
