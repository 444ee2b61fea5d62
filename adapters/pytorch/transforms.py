"""What torch.func runs a model by."""

from __future__ import annotations

from dream._errors import Unsupported
from dream.adapters.pytorch import private


def untransformed(ranks: int, *, any_within: bool = False) -> bool:
    """Whether no transform of torch.func runs what is called now. any_within: look at those that
    the innermost one is in, too.

    Raises:
        Unsupported: one that differentiates does, and there are several ranks.
    """
    if private.peek_transform() is None:
        return True
    *around, running = private.transforms()
    if any_within:
        running = next((each for each in (*around, running) if each != "Vmap"), running)
    if running == "Vmap" or ranks == 1:
        return False
    raise Unsupported(
        "Gradients computed by torch.func are this rank's alone and are not averaged. "
        f"Received: a model's call inside torch.func ({running}). Use loss.backward(); or "
        "differentiate copy.deepcopy(model), which is left alone, and average what that gives "
        "by strategy.communicator.all_reduce."
    )
