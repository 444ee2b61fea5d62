"""Keras beside torch modules: its block opens once Keras is imported, in dream's block or before
it; strategies that cannot train Keras models refuse them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, final

from dream._adapter import Loss, Plan, Step, Weight
from dream._errors import Unsupported
from dream._framework import ImportWatch
from dream.collectives import Communicator
from dream.strategies.registry import load

if TYPE_CHECKING:
    from dream.adapters.pytorch.compression import Exchanged
    from dream.adapters.pytorch.data.modes import Modes
    from dream.adapters.pytorch.data.shares import Shares
    from dream.adapters.pytorch.hooks import Patches
    from dream.adapters.pytorch.module import ModuleRegistry
    from dream.checkpoint.checkpointer import Checkpointer


@final
class KerasEntry:
    """Opens and closes a block for Keras along with dream's. opener: the address of what makes it,
    from the plan, the communicator and, where gradients do not become their mean, `exchanged`.
    shares: those that loaders hand out. registry: whose modules its models are in a torch loop.
    modes: told that the block trains."""

    def __init__(
        self,
        plan: Plan,
        communicator: Communicator,
        opener: str = "dream.adapters.pytorch.keras.engine:open_block",
        exchanged: Exchanged | None = None,
        shares: Shares | None = None,
        registry: ModuleRegistry | None = None,
        modes: Modes | None = None,
    ) -> None:
        self._registry, self._modes = registry, modes
        self._opener, self._exchanged, self._shares = opener, exchanged, shares
        self._plan = plan
        self._communicator = communicator
        self._watch = ImportWatch(self._found)
        self._block: Any = None
        self._open = False

    def enter(self) -> None:
        if "keras" in sys.modules:
            self._found()
        else:
            self._watch.install()

    def exit(self) -> None:
        self._watch.remove()
        if self._open:
            self._open = False
            self._block.exit()

    def prepare(self, item: Any) -> Any | None:
        """Distribute a Keras object; None where it is none of Keras's."""
        if self._block is None or not self._block.takes(item):
            return None
        return self._block.prepare(item)

    def train_step(
        self, model: Any, loss: Loss, optimizer: Any, weight: Weight | None
    ) -> Step | None:
        """Return the explicit step of an optimizer of Keras's; None where it is none of them."""
        if self._block is None or not self._block.takes(optimizer):
            return None
        build = load("dream.adapters.pytorch.keras.step:KerasStep")
        step: Step = build(self._block.engine, model, loss, optimizer, weight, self._shares)
        return step

    def checkpointer(self, model: Any) -> Checkpointer | None:
        """Return what saves and loads a model of Keras's; None for one that is none."""
        if self._block is None or not self._block.takes(model):
            return None
        make: Callable[[], Checkpointer] | None = getattr(self._block, "held_by", None)
        if make is None:
            build = load("dream.adapters.keras.checkpoint.checkpointer:KerasCheckpointer")
            make = partial(build, self._block.engine)
        return make()

    def _found(self) -> None:
        if "keras" not in sys.modules or sys.modules["keras"].backend.backend() != "torch":
            return
        if self._block is None:
            extra = () if self._exchanged is None else (self._exchanged,)
            self._block = load(self._opener)(self._plan, self._communicator, *extra)
            if self._registry is not None:
                self._block.engine.registry = self._registry
                if self._shares is not None:
                    self._block.engine.handed = self._shares.handed
        if self._modes is not None:
            self._modes.differentiates = True  # Keras's optimizers are not torch's
        self._open = True
        self._block.enter()


def is_keras(item: Any) -> bool:
    """Whether this is a layer or an optimizer of Keras's, or of a class made of one."""
    return any(base.__module__.partition(".")[0] == "keras" for base in type(item).__mro__)


def refuse_keras(item: Any, strategy: str) -> None:
    """Refuse a layer or an optimizer of Keras's."""
    if is_keras(item):
        raise Unsupported(
            f"Under {strategy!r} Keras models do not train on torch. Received: "
            f"{type(item).__name__}. Use 'mirrored' for it, KERAS_BACKEND=tensorflow, or a torch "
            "module."
        )


def forbid_fits(patches: Patches, strategy: str) -> None:
    """Refuse the loops of Keras models made before the block while it is open. Those made in it are
    refused as they are made."""
    keras = sys.modules.get("keras")
    if keras is None or not hasattr(keras, "Model"):  # its import may be under way
        return

    def refused(model: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        refuse_keras(model, strategy)

    for loop in ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch"):
        patches.replace(keras.Model, loop, refused)
