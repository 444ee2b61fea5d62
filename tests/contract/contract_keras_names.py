"""Which Keras cases each law is held over, by name: the tests import no framework."""

from __future__ import annotations

from collections.abc import Collection

from contract_cells import Cell

CORE = frozenset(
    {
        "uneven_momentum",
        "rank_without_sample_adamw",
        "shuffled",
        "global_clipnorm",
        "accumulated_momentum",
        "clip_norm",
        "batch_normalisation_over_replicas",
        "compressed",
        "adasum",
        "several_outputs",
        "batch_normalisation",
        "copies",
        "step_adamw_rank_without_sample",
        "communicator",
        "refusals",
        "loop_written_by_hand",
        "ranks_that_built_different_models",
    }
)
"""Every cell runs these."""

WITH_OPTIMIZER = (
    "even_momentum",
    "uneven_momentum",
    "uneven_adamw",
    "rank_without_sample_momentum",
    "rank_without_sample_adamw",
)
PLAIN_TOO = (
    *WITH_OPTIMIZER,
    "rank_dependent_initial_weights",
    "shuffled",
    "clipnorm",
    "global_clipnorm",
    "clipvalue",
    "sample_weight",
    "class_weight",
    "several_outputs",
    "dataset_of_the_users",
    "python_dataset_of_the_users",
    "stopped_early",
    "fitted_after_the_block",
    "attention_momentum",
    "copies",
)
"""Cases that also run without dream: `single` itself is held against plain Keras."""

STEPS = ("step_momentum", "step_adamw_rank_without_sample", "step_weighted_by_counts")
EQUAL = (*PLAIN_TOO, *STEPS)
WITH_EPOCHS = (
    *WITH_OPTIMIZER,
    "sample_weight",
    "class_weight",
    "several_outputs",
    "stopped_early",
)
WITH_EVALUATE = (
    "uneven_momentum",
    "sample_weight",
    "dataset_of_the_users",
    "fitted_after_the_block",
)
WITH_PREDICT = ("uneven_momentum", "several_outputs", "fitted_after_the_block")
RIGHT_OR_REFUSED = (
    "accumulated_by_the_optimizer",
    "averaged_by_the_optimizer",
    "loop_written_by_hand",
)

ACCUMULATED = (
    "accumulated_momentum",
    "accumulated_adamw_rank_without_sample",
    "accumulated_outputs_and_weights",
    "accumulated_twice",
    "accumulated_and_clipped",
    "accumulated_step",
    "accumulated_step_weighted_by_counts",
)
"""`single` runs these without accumulation, and once with it."""
CLIPPED = ("clip_norm", "clip_value", "clip_norm_with_a_scaled_loss", "clip_norm_in_a_step")
PRECISE = ("precision_bfloat16", "precision_float16")
NORMALISED = ("batch_normalisation_over_replicas",)
RECOMPUTED = ("recomputed", "recomputed_in_a_step")
TRAVELLING = ("compressed", "adasum", "travel_refused")
OTHER = ("precision_levels", "knobs_refused", *TRAVELLING)
KNOBS = frozenset({*ACCUMULATED, *CLIPPED, *PRECISE, *NORMALISED, *RECOMPUTED, *OTHER})
TAKE_KNOBS = frozenset({"single", "mirrored", "multi_worker_mirrored", "horovod"})
"""The strategies that have these options."""

ON_A_MESH = {
    "batch_normalisation": "one program sees the whole batch: its statistics are one device's, "
    "which tests/tf_split holds",
    "dropout_masks": "one generator draws for the whole batch",
    "refusals": "a batch need not give every device a sample, and sums add up: other refusals, "
    "which tests/tf_split holds",
}
"""Cases that say nothing of a split model, and why."""
ON_DEVICES = {
    "batch_normalisation": "its BatchNormalization sees the global batch, and there is no option "
    "against it",
}
"""Cases that say nothing of `data_parallel`, and why."""
_SPLIT = ("sharded", "model_parallel", "hybrid")


def without_meaning(cell: Cell) -> Collection[str]:
    """What a cell leaves out."""
    if cell.strategy == "data_parallel":
        return {*KNOBS.difference(NORMALISED), *ON_DEVICES}
    knobs: Collection[str] = () if cell.strategy in TAKE_KNOBS else KNOBS
    if cell.processes < cell.replicas:
        knobs = {*knobs, "compressed", "adasum"}
    return {*knobs, *(ON_A_MESH if cell.strategy in _SPLIT else ())}
