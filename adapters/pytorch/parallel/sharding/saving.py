"""Files of what is in shards: a pickler is given the whole of a tensor, made by all ranks together.

`torch.save` in the block looks for such tensors first, on every rank; the whole ones are kept by
those alone that may write the file. Any other pickler (`pickle.dump`, `torch.save` after the block)
has each tensor made whole as it comes to it. Those of a GPU are kept on the host, which has room.
"""

from __future__ import annotations

import copyreg
import os
import pickle
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dream._errors import ConfigurationError, Desynchronized, WorkerFailed
from dream.adapters.pytorch.parallel.sharding.parameters import OldParameter
from dream.adapters.pytorch.private import to_local, to_whole
from dream.collectives import Communicator
from dream.files import saves as job_saves
from dream.files.whole import resolved

_PROTOCOL = 2
"""Torch's own, for what a tensor is made of."""


@final
class Wholes:
    """Makes tensors whole for picklers of this process.

    world: the ranks that save together, of the newest strategy.
    """

    def __init__(self) -> None:
        self.world: Communicator | None = None
        self._made: dict[Any, torch.Tensor] = {}
        self._thread = 0

    def begin(self, world: Communicator) -> None:
        """Have shards pickled whole from here on, for life: they are, after the block too."""
        self.world, self._thread = world, threading.get_ident()
        copyreg.pickle(DTensor, _reduced)
        copyreg.pickle(OldParameter, lambda old: _reduced(old.shards))

    def meet(self, parts: list[DTensor], doing: str) -> None:
        """Return once every rank has come to save the same."""
        if threading.get_ident() != self._thread:
            raise ConfigurationError(
                "What is in shards is saved in the thread that trains, since all ranks make it "
                f"whole together. Received: {doing} of {len(parts)} tensors in a thread named "
                f"{threading.current_thread().name!r}. Save there, or give the thread "
                "strategy.full_state(model)."
            )
        assert self.world is not None
        try:
            elements = sum(part.numel() for part in parts)
            self.world.meet(doing, tensors_in_shards=len(parts), elements=elements)
        except (Desynchronized, WorkerFailed) as error:
            raise type(error)(
                "What is in shards is saved by all ranks together; rank 0 writes the file. "
                f"{error} Save on every rank: not behind a test of the rank."
            ) from error

    def keep(self, part: DTensor, whole: torch.Tensor) -> None:
        """Have it for a save that is under way. What is tied stays so in the file."""
        place = _place(part)
        self._made[id(part)] = self._made.setdefault(place, whole) if place else whole

    def kept(self, part: DTensor) -> torch.Tensor | None:
        """Return it, where the pickler comes to another view of the same shards too."""
        return self._made.get(id(part), self._made.get(_place(part)))

    def forget(self) -> None:
        self._made.clear()


def _place(part: DTensor) -> tuple[Any, ...]:
    """Tell shards by where they lie; nothing of those that have no memory."""
    own = to_local(part)
    return (own.data_ptr(), part.shape, own.stride()) if own.numel() else ()


_WHOLES = Wholes()
begin = _WHOLES.begin


def _reduced(part: Any) -> Any:
    whole = _WHOLES.kept(part)
    if whole is None:
        if _WHOLES.world is not None and _WHOLES.world.world_size > 1:
            _WHOLES.meet([part], "pickle")
        whole = _whole(part)
    if isinstance(part, nn.Parameter):
        return nn.Parameter(whole, part.requires_grad).__reduce_ex__(_PROTOCOL)
    return whole.detach().requires_grad_(part.requires_grad).__reduce_ex__(_PROTOCOL)


def _whole(part: DTensor) -> torch.Tensor:
    """Return the numbers of all ranks, on the host."""
    replicated = all(placement.is_replicate() for placement in part.placements)
    whole = to_local(part).detach() if replicated else to_whole(part.detach())
    return whole.cpu()


def saving_wholes(save: Callable[..., None]) -> Callable[..., None]:
    """Have `torch.save` write whole tensors. It is called on every rank, and raises on every rank
    what cannot be saved, where a pickler would on the one that writes."""

    @wraps(save)
    def save_whole(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        parts = _parts_of(obj, args[0] if args else kwargs.get("pickle_module"))
        if not parts:
            save(obj, f, *args, **kwargs)
            return
        _WHOLES.meet(parts, "torch.save")
        named = isinstance(f, (str, os.PathLike))
        writes = _may_write(f if named else None)
        try:
            for part in parts:
                whole = _whole(part)
                if writes:
                    _WHOLES.keep(part, whole)
                del whole
            if writes:
                save(obj, f, *args, **kwargs)
            else:
                job_saves.here().save(f, lambda _: None, follow=True)
        finally:
            _WHOLES.forget()

    return save_whole


def _may_write(path: str | os.PathLike[str] | None) -> bool:
    """Whether a file is not rank 0's alone. path: None for an open file, which is this rank's."""
    own = None if path is None else os.fsdecode(resolved(path))
    assert _WHOLES.world is not None
    return _WHOLES.world.broadcast_object(own) != own or own is None or _WHOLES.world.rank == 0


def _parts_of(obj: object, pickle_module: Any) -> list[DTensor]:
    """Return what a pickler would come to that is in shards, each once, in its order."""
    found: dict[int, DTensor] = {}
    base: Any = getattr(pickle_module or pickle, "Pickler", pickle.Pickler)

    class Finder(base):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> str | None:
            part = value.shards if type(value) is OldParameter else value
            if isinstance(part, DTensor):
                found[id(part)] = part
                return "shards"
            stored = isinstance(value, torch.storage.TypedStorage) or torch.is_storage(value)
            return "storage" if stored else None

    Finder(_Nowhere(), protocol=_PROTOCOL).dump(obj)
    return [*found.values()]


@final
class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)
