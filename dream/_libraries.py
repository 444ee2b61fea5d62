"""Libraries that distribute training by themselves: refused inside a block of several ranks, where
what they deal and reduce would be dealt and reduced twice."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, final

from dream._errors import Unsupported
from dream._framework import ImportWatch
from dream._patches import Patches


@final
@dataclass(frozen=True, slots=True)
class LibraryCall:
    """What a script calls of a library. name: "Class.method" or a function of the module."""

    module: str
    name: str
    library: str
    instead: str = "Take it out and keep the plain loop, or train without the block"
    does: str = "distributes training"


_KERAS = "Use a plain Keras optimizer: the block reduces gradients itself"
_TORCH = "Use a plain torch optimizer: the block reduces gradients itself"
ENTRANCES = (
    LibraryCall("accelerate.accelerator", "Accelerator.__init__", "Accelerate"),
    LibraryCall("accelerate.accelerator", "Accelerator.prepare", "Accelerate"),
    LibraryCall("lightning.pytorch.trainer.trainer", "Trainer.fit", "Lightning"),
    LibraryCall("lightning.pytorch.trainer.trainer", "Trainer.__init__", "Lightning"),
    LibraryCall("pytorch_lightning.trainer.trainer", "Trainer.fit", "Lightning"),
    LibraryCall("pytorch_lightning.trainer.trainer", "Trainer.__init__", "Lightning"),
    LibraryCall("lightning.fabric.fabric", "Fabric.__init__", "Lightning Fabric"),
    LibraryCall("lightning.fabric.fabric", "Fabric.setup", "Lightning Fabric"),
    LibraryCall("lightning_fabric.fabric", "Fabric.__init__", "Lightning Fabric"),
    LibraryCall("lightning_fabric.fabric", "Fabric.setup", "Lightning Fabric"),
    LibraryCall("transformers.trainer", "Trainer.__init__", "transformers.Trainer"),
    LibraryCall("transformers.trainer", "Trainer.train", "transformers.Trainer"),
    LibraryCall("deepspeed", "initialize", "DeepSpeed"),
    LibraryCall("composer.trainer.trainer", "Trainer.__init__", "Composer"),
    LibraryCall("colossalai.booster.booster", "Booster.__init__", "Colossal-AI"),
    LibraryCall("ray.train.torch", "prepare_model", "Ray Train"),
    LibraryCall("horovod.torch", "DistributedOptimizer", "Horovod", _TORCH),
    LibraryCall("horovod.tensorflow", "DistributedOptimizer", "Horovod", _KERAS),
    LibraryCall("horovod.keras", "DistributedOptimizer", "Horovod", _KERAS),
    LibraryCall("horovod.tensorflow.keras", "DistributedOptimizer", "Horovod", _KERAS),
    LibraryCall(
        "opacus.privacy_engine", "PrivacyEngine.make_private", "Opacus",
        "Its noise and its clipping are of each rank's own samples: train this model without the "
        "block", does="clips gradients",
    ),
    LibraryCall(
        "torch.distributed.fsdp", "fully_shard", "fully_shard",
        "Take it out and name the strategy 'sharded'",
    ),
    LibraryCall(
        "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel.__init__",
        "FullyShardedDataParallel", "Take it out and name the strategy 'sharded'",
    ),
    LibraryCall(
        "torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer.__init__",
        "ZeroRedundancyOptimizer",
        "Make the optimizer that it wraps, and name the strategy 'sharded', zero=1",
    ),
)  # fmt: skip


@final
class Refusal:
    """Refuses every entrance while a block is open; what is imported meanwhile too."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy
        self._patches = Patches()
        self._watch: ImportWatch | None = None
        self._closed: set[LibraryCall] = set()

    def begin(self) -> None:
        for entrance in ENTRANCES:
            if entrance not in self._closed and entrance.module in sys.modules:
                self._close(entrance)
        missing = {e.module for e in ENTRANCES if e not in self._closed}
        self._watch = ImportWatch(self.begin, missing)
        self._watch.install()

    def end(self) -> None:
        if self._watch is not None:
            self._watch.remove()
        self._patches.restore()
        self._closed.clear()

    def _close(self, entrance: LibraryCall) -> None:
        owner: Any = sys.modules[entrance.module]
        *path, name = entrance.name.split(".")
        for part in path:
            owner = getattr(owner, part, None)
        original = getattr(owner, name, None)
        if original is not None:
            self._closed.add(entrance)
            refused = _refused(entrance, original, self._strategy)
            if path:
                self._patches.replace(owner, name, refused)
            else:
                home = entrance.module.partition(".")[0]
                self._patches.replace_bound(owner, name, refused, home)


def _refused(entrance: LibraryCall, original: Callable[..., Any], strategy: str) -> Any:
    @wraps(original)
    def refused(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("dream."):
            return original(*args, **kwargs)
        raise Unsupported(
            f"{entrance.library} {entrance.does} by itself, and so does this block. Received: "
            f"{entrance.name.removesuffix('.__init__')} under {strategy!r} with several ranks. "
            f"{entrance.instead}."
        )

    return refused
