"""Batches that a loop of the user's own gives, one at a time: where all ranks are given the same
one, it is the global batch, of which each part takes its rows."""

from __future__ import annotations

from typing import Any, final

import keras
import numpy as np
from keras import tree

from dream._errors import Unsupported
from dream._log import logger
from dream.adapters.keras.data import private as private_data
from dream.adapters.keras.data.alike import digest_of_arrays
from dream.adapters.keras.data.share import BATCH, SHARE, BatchShare
from dream.adapters.keras.data.sources import DIGESTS, check_dense
from dream.adapters.keras.engine import Engine
from dream.data.alike import Looks

Arguments = dict[str, Any]


@final
class GivenBatches:
    """The batches of one model's train_on_batch, or of its test_on_batch.

    Whether ranks are given the same is looked at now and then; between looks the step's own sum
    tells, by the digests in it. Shares that the user has cut are compared each time.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looks = Looks()
        self._whole = engine.pooled
        self._said = False

    def dealt(self, given: Arguments) -> Arguments:
        """Return a call's arguments with this part's rows in place of the whole batch; as they are,
        where each rank has given a share of its own, which counts as an equal one."""
        engine = self._engine
        if engine.mixed:  # nothing of the other framework's would answer
            return given
        batch = _packed(given)
        rows = _rows(batch)
        digest = digest_of_arrays(batch, rows) % (DIGESTS - 1) + 1 if rows else 0
        share = engine.handed(tree.flatten(batch))
        if engine.several_processes and (not self._whole or share or self._looks.due()):
            total = 0 if share is None else share.total
            said = engine.communicator.all_gather_object((rows, digest, total))
            counts = [count for count, *_ in said]
            if share is not None and {all_ for *_, all_ in said} == {sum(counts)}:
                return _with(given, engine.placed([_shown(batch, BatchShare.of(share))]))
            self._whole = rows > 0 and len(set(said)) == 1
            if len(set(said)) > 1:
                self._say(counts)
        if not self._whole and engine.pooled:
            raise Unsupported(
                "Ranks of several devices are each given the whole batch, which is dealt out. "
                f"Received: {rows} samples on rank {engine.rank}, others elsewhere. Give all ranks "
                "the same batch."
            )
        if not self._whole:
            return given
        element = engine.placed([self._part(batch, rows, digest, part) for part in engine.here])
        return _with(given, element)

    def _part(self, batch: Any, rows: int, digest: int, part: int) -> dict[str, Any]:
        dealt = self._engine.division.share(rows, part)
        cut = dealt.cut if dealt.count else slice(0, 1)  # which then weighs nothing
        share: Any = BatchShare.of(dealt, digest)
        if self._engine.framework == "tensorflow":  # where other numbers would be traced anew
            share = np.array([each for each in share if each is not None], np.float32)
        return {BATCH: tree.map_structure(lambda a: a[cut], batch), SHARE: share}

    def _say(self, rows: list[int]) -> None:
        if not self._said:
            self._said = True
            logger.warning(
                "train_on_batch and test_on_batch count each rank's own batch as an equal share of "
                "the global one. Received: other batches on some ranks, of %s samples by rank. "
                "Give all ranks the whole batch, which is dealt out then: seed alike what draws it",
                ", ".join(map(str, rows)),
            )  # fmt: skip


_OTHERS = ("y", "sample_weight", "class_weight")


def _with(given: Arguments, element: Any) -> Arguments:
    return {**given, "x": element, **{name: None for name in _OTHERS if name in given}}


def _shown(batch: Any, share: BatchShare) -> dict[str, Any]:
    """Return what a loader dealt a rank, in arrays, which nobody takes for a batch of the user's
    own loop; a row that weighs nothing where that is no sample."""
    arrays = tree.map_structure(keras.ops.convert_to_numpy, batch)
    if not share.count:
        arrays = tree.map_structure(lambda a: np.zeros((1, *a.shape[1:]), a.dtype), arrays)
    return {BATCH: arrays, SHARE: share}


def _packed(given: Arguments) -> Any:
    x, y, weight = given["x"], given["y"], given["sample_weight"]
    check_dense((x, y))
    if given.get("class_weight") is not None and weight is None:
        weight = private_data.sample_weights(y, given["class_weight"])
    return keras.utils.pack_x_y_sample_weight(x, y, weight)


def _rows(batch: Any) -> int:
    """Count the samples of a batch; 0 where it is of no arrays alike in their first dim."""
    shapes = [getattr(leaf, "shape", ()) for leaf in tree.flatten(batch) if leaf is not None]
    lengths = {int(shape[0]) if shape else 0 for shape in shapes}
    return lengths.pop() if len(lengths) == 1 else 0
