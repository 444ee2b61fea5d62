"""A strategy's adapter, made once it is known which framework the strategy is for: what is imported
leaves no choice, or the script makes or uses the first thing of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from dream import _framework, _observers, cluster
from dream._adapter import Adapter
from dream._errors import ConfigurationError
from dream._topology import Cluster
from dream.strategies import making
from dream.strategies.choice import Choice, Randomness
from dream.strategies.spec import Framework


@final
class PendingAdapter:
    """framework: None until something says it."""

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
        return making.adapter(self._choice, self._randomness, self._place, framework)
