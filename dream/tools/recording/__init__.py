"""What `dream verify` has ranks write down while a user's script runs, unchanged.

request     what is asked of a rank
recorder    what hooks in the block and in adapters tell
record      what the rank leaves behind
seeding     generators that a script does not seed

Nothing of it is in the path of a script that is not verified: `active()` is None then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dream.tools.recording.recorder import Recorder

SEEN = (
    "Seen are backward() from a number, a GradientTape's gradient() of one, strategy.train_step, "
    "and Keras's fit and train_on_batch."
)
"""Which steps are recorded, for people."""
NO_BLOCK = (
    "The script entered no block, or one in which no framework was imported. Put what trains into "
    '`with dream.strategy("mirrored"):`.'
)

_active: Recorder | None = None


def active() -> Recorder | None:
    """The recorder of this process, if it is verified."""
    return _active


def draws_alike() -> bool:
    """Whether all ranks are to draw the same random numbers, to see what comes of it."""
    return _active is not None and "alike" in _active.request.changes


def begin() -> None:
    """Record from now on, as the environment asks. Called before the script starts."""
    global _active
    from dream import cluster
    from dream.tools.recording.recorder import Recorder
    from dream.tools.recording.request import Request

    text = cluster.requested_record()
    assert text is not None
    _active = Recorder(Request.of(text), cluster.detect())


def finish() -> None:
    """The script has come to its end: write down what is not written yet."""
    if _active is not None:
        _active.finish()
