"""TensorFlow's exceptions, said in dream's words. The one place where they are mapped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from dream._errors import ConfigurationError, Desynchronized, DreamError, WorkerFailed

Explanation = Callable[[tf.errors.OpError], DreamError | None]

_MISMATCH = (
    "Shape mismatch in the collective",
    "expected type",
    "Inconsistent",
    "Mismatched ",  # the ring's own words, these two
    "ops must match",
)
_OVER = ("Collective ops is aborted", "Horovod has been shut down")
_GONE = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
)


_explanations: list[Explanation] = []


def explained_by(explanation: Explanation) -> None:
    """A transport with ops of its own says what their errors mean."""
    _explanations.append(explanation)


@contextmanager
def translated() -> Iterator[None]:
    """Turn what a failed collective raises inside into `Desynchronized` or `WorkerFailed`."""
    try:
        yield
    except tf.errors.OpError as error:
        known = _known(error)
        if known is None:
            raise
        raise known from error


def _known(error: tf.errors.OpError) -> DreamError | None:
    for explanation in _explanations:
        if known := explanation(error):
            return known
    text = str(error.message)
    if any(words in text for words in _MISMATCH):
        return Desynchronized(
            f"The ranks called a collective with different tensors. Received: {_first_line(text)} "
            "Make the same calls, with the same shapes and dtypes, on every rank."
        )
    if isinstance(error, _GONE) or any(words in text for words in _OVER):
        gone = sorted(set(re.findall(r"^/job:worker/replica:0/task:(\d+)$", text, re.MULTILINE)))
        return WorkerFailed(
            f"{_who(gone)} left or fell silent during a collective. Received: {_first_line(text)} "
            "Look at that rank's log; then start the job again."
        )
    return None


def _who(ranks: list[str]) -> str:
    return f"Rank {', '.join(ranks)}" if ranks else "A rank"


def _first_line(text: str) -> str:
    """The line that tells, else the first, after TensorFlow's own node names."""
    lines = text.strip().splitlines() or ["no message."]
    told = (line for line in lines if any(words in line for words in (*_MISMATCH, *_OVER)))
    line = next(told, lines[0]).strip()
    line = line.rpartition("}} ")[2].replace("Collective ops is aborted by: ", "")
    return line.rstrip(" .:") + "."


def refused_where(condition: tf.Tensor, words: str) -> None:
    """Raise `ConfigurationError` where a condition holds; in a graph, TensorFlow's own error."""
    if not tf.executing_eagerly():
        tf.debugging.Assert(tf.logical_not(condition), [words])
    elif condition:
        raise ConfigurationError(words)


def too_late(what: str, *, early: bool = True) -> ConfigurationError:
    """TensorFlow has run an op already, and `what` must come before the first. early: whether
    `dream run --strategy` sees to that."""
    or_so = ", or start the script with `dream run --strategy NAME`, which sets this up by itself"
    return ConfigurationError(
        f"TensorFlow has already started, and the block needs {what} before its first op. "
        "Received: an op, a dataset, a model or another block before this one. Move the block up, "
        f"to right after the imports{or_so if early else ''}."
    )
