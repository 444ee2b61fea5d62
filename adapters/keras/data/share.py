"""A part's share of a global batch, and the form in which it is dealt to a step."""

from __future__ import annotations

from typing import Any, NamedTuple, final

import keras

from dream.data.partition import Share

SHARE = "dream.share"
BATCH = "dream.batch"
PARTS = "dream.parts"
MORE = "dream.more"
WHOLE = "dream.whole"
PLACES = "dream.places"
EVEN = "dream.even"
"""Keys of a dealt element: {SHARE: a `BatchShare` or its numbers, BATCH: what the model is
given}; where every part has as much of every batch, {EVEN: what the model is given, SHARE: a
digest, if any}; or {PARTS: such an element for each part that is here}; or, where each rank reads
data of its own, {SHARE: the samples of its batch, MORE: whether another one follows, BATCH: ...};
or, where shares change, {SHARE: a digest, WHOLE: a global batch}, or with PLACES, where it is in
WHOLE. Where shapes alone told these apart, TensorFlow would take them for one of any shape."""


@final
class BatchShare(NamedTuple):
    """A part's share of a global batch, in numbers or scalar tensors.

    count, total: this part's samples and the global batch's. digest: a number below 2**23 made of
    the global batch, so that ranks can tell when they read different ones; None where they compare
    none. first: where the part's samples begin in it; None where they are dealt out. rows: of this
    part's batch, as it is shown. equal: how many shares there are, where a step knows that all are
    equal.
    """

    count: Any
    total: Any
    digest: Any = 0.0
    first: Any = None
    rows: Any = None
    equal: int | None = None

    @classmethod
    def of(cls, share: Share, digest: float = 0.0) -> BatchShare:
        """Return the one in plain numbers."""
        return cls(share.count, share.total, digest, share.first if share.most else None)

    @classmethod
    def even(cls, rows: Any, parts: int, digest: Any = None) -> BatchShare:
        """Return the share of a part whose batch has as many rows as every part's."""
        many = keras.ops.cast(rows, "float32")
        return cls(many, many * parts, digest, equal=parts)

    def shown(self, rows: Any) -> BatchShare:
        """Return the same of a batch of so many rows."""
        return self._replace(rows=rows)

    @property
    def fraction(self) -> Any:
        """In float64: models of that dtype are weighed by it too."""
        if self.equal is not None:
            return 1.0 / self.equal
        if not keras.ops.is_tensor(self.count):
            return float(self.count) / float(self.total)
        return keras.ops.cast(self.count, "float64") / keras.ops.cast(self.total, "float64")
