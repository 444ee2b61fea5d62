"""What is pickled of a model that FSDP2 shards: an ordinary one of the script's own classes. Its
parameters are made whole as a pickler comes to them (`sharding/saving.py`)."""

from __future__ import annotations

from functools import partial
from typing import Any, final

from torch import nn

from dream.adapters.pytorch.call_hook import STATE, set_hook
from dream.adapters.pytorch.parallel.fsdp import private

_OF_ANY_CLASS = 1
"""A protocol of pickles; later ones hold what an object is made of to its class."""


def pickled(module: Any, _: Any) -> Any:
    """`__reduce_ex__` of a module whose class is FSDP2's."""
    module.reshard()
    original = private.original_class(module)
    made: nn.Module = original.__new__(original)
    vars(made).update(private.without_fsdp(vars(module)))
    set_hook(made, None)
    return made.__reduce_ex__(_OF_ANY_CLASS)


@final
class OrdinaryState:
    """`__getstate__` of a part that is gathered with another one: FSDP2 puts hooks there too, and
    copies and pickles are to have the script's alone. own: that of its class, if that is not
    torch's."""

    def __init__(self, part: nn.Module) -> None:
        self._part = part
        held = vars(part).get(STATE)
        self.own: Any = held.own if isinstance(held, OrdinaryState) else held

    def __call__(self) -> Any:
        state = nn.Module.__getstate__(self._part) if self.own is None else self.own()
        state.pop(STATE, None)
        return private.without_fsdp(state)


@final
class StayGathered:
    """Stands for `flatten_parameters` of recurrent layers, which torch calls when it sees other
    parameters: on a GPU that moves what is gathered elsewhere, and the layer would compute by its
    first weights for ever. What is pickled has Python's own that does nothing."""

    def __call__(self) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (bool,)
