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
    "dropout",
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
TRAVELLED = ("compressed", "adasum")
TRAVELLING = (*TRAVELLED, "travel_refused")
"""For processes that are replicas."""
OTHER = ("recomputed_in_half", "precision_levels", "knobs_refused", *TRAVELLING)
KNOBS = frozenset({*ACCUMULATED, *CLIPPED, *PRECISE, *NORMALISED, *RECOMPUTED, *OTHER})
ON_A_MESH = {
    "batch_normalisation": "one program sees the whole batch: its statistics are one device's, "
    "which tests/adapters/tensorflow/parallel holds",
    "dropout": "one generator draws for the whole batch",
    "refusals": "a batch need not give every device a sample, and sums add up: other refusals, "
    "which tests/adapters/tensorflow/parallel holds",
}
"""Cases that say nothing of a split model, and why."""
IN_PARTS = {
    "batch_normalisation_over_replicas": "a microbatch has statistics of its own: BatchNorm is "
    "refused, which tests/adapters/tensorflow/parallel holds",
    "precision_levels": "its model has a BatchNormalization",
}
"""Cases that say nothing of a pipeline, and why."""
ON_ROWS = dict.fromkeys(
    (*RECOMPUTED, "recomputed_in_half"),
    "further rows of one process have copies: refused, held by tests/adapters/tensorflow/parallel",
)
"""Cases that say nothing of a pipeline's rows in one process, and why."""
SEVERAL_EACH = {"attention_adamw": "what AdamW carries of rounding is known for 2 and 3 parts"}
"""Cases that say nothing of several ranks of several devices, and why."""
SPLIT_CORE = frozenset(
    {
        "accumulated_and_clipped",
        "accumulated_step_weighted_by_counts",
        "clip_value",
        "clip_norm_with_a_scaled_loss",
        "precision_float16",
        "recomputed",
        "recomputed_in_half",
    }
)
"""Beside the core, what every split model runs."""


def core(cell: Cell) -> Collection[str]:
    """What a cell runs at least."""
    return CORE | SPLIT_CORE if cell.strategy in _SPLIT else CORE


_SPLIT = ("sharded", "model_parallel", "hybrid")


def without_meaning(cell: Cell) -> Collection[str]:
    """What a cell leaves out."""
    if cell.strategy in _SPLIT:
        in_parts = IN_PARTS if "split=pipeline" in cell.options else ()
        rows = ON_ROWS if in_parts and cell.strategy == "hybrid" and cell.processes == 1 else ()
        return {*ON_A_MESH, *in_parts, *rows, *TRAVELLING}
    if cell.strategy == "data_parallel":
        return TRAVELLING
    if 1 < cell.processes < cell.replicas:
        return {*TRAVELLING, *SEVERAL_EACH}
    return TRAVELLED if cell.processes < cell.replicas else ()


HELD = {
    "even_momentum": "uneven_momentum, which has even batches too",
    "uneven_adamw": "rank_without_sample_adamw",
    "rank_without_sample_momentum": "rank_without_sample_adamw, and uneven_momentum",
    "rank_dependent_initial_weights": "rank_without_sample_adamw, which starts from such",
    "clipnorm": "global_clipnorm: what Keras clips by is its own",
    "clipvalue": "global_clipnorm",
    "clip_value": "clip_norm: what is cut is the same gradient",
    "clip_norm_with_a_scaled_loss": "clip_norm, and precision_float16, which scales",
    "clip_norm_in_a_step": "accumulated_and_clipped, which steps too",
    "attention_momentum": "torch, in the contract and in transformer of tests/adapters/keras",
    "attention_adamw": "that, and torch: how far AdamW carries rounding is no backend's",
    "step_momentum": "step_adamw_rank_without_sample",
    "class_weight": "sample_weight, and weights_of_classes of tests/adapters/keras",
    "python_dataset_of_the_users": "python_dataset of tests/adapters/keras",
    "fitted_after_the_block": "global_clipnorm, and uneven_momentum, which predicts there",
    "stopped_early": "callbacks_that_watch_the_logs of tests/adapters/keras",
    "accumulated_by_the_optimizer": "gradients_accumulated of tests/adapters/keras",
    "accumulated_momentum": "accumulated_and_clipped",
    "accumulated_adamw_rank_without_sample": "accumulated_and_clipped, whose fit has such a rank",
    "accumulated_twice": "gradients_accumulated of tests/adapters/keras",
    "accumulated_step": "accumulated_and_clipped, which steps too",
    "precision_bfloat16": "precision_float16: Keras's own policy by another name",
    "averaged_by_the_optimizer": "averages_of_the_weights of tests/adapters/keras",
    "recomputed_in_half": "recomputed, and precision_float16",
    "dataset_of_the_users": "frameworks_own_data of tests/adapters/keras",
    "clip_norm": "accumulated_and_clipped, and global_clipnorm",
    "evaluate": "evaluations by ranks and by devices in tests/adapters/tensorflow",
    "recomputed": "that of a sharded model, and a budget's share in tests/adapters/keras",
    "recomputed_in_a_step": "recomputed: a step has the same layers",
    "step_weighted_by_counts": "accumulated_step_weighted_by_counts",
}
"""On TensorFlow, where a case takes seconds: those that others hold, which run on torch as well."""
OF_TORCH = frozenset({"adasum", "compressed"})
"""Of Keras on torch: what torch's own contract holds, by the same functions."""
OF_ANY_DEVICES = frozenset(
    {
        "clip_norm",
        "copies",
        "files_are_rank_0s",
        "global_clipnorm",
        "nothing_stays_patched",
        "sample_weight",
        "several_outputs",
        "shuffled",
        "accumulated_outputs_and_weights",
        "knobs_refused",
        "precision_float16",
        "precision_levels",
        "recomputed",
        "recomputed_in_a_step",
        "recomputed_in_half",
    }
)
"""Nothing in them is of devices in one process: held by the cell of two processes that runs all."""
OF_ANY_WIRE = frozenset(
    {
        "accumulated_momentum",
        "adasum",
        "batch_normalisation_over_replicas",
        "compressed",
        "rank_without_sample_adamw",
        "refusals",
        "shuffled",
        "global_clipnorm",
        "clip_norm",
        "several_outputs",
        "batch_normalisation",
        "copies",
        "loop_written_by_hand",
        "step_adamw_rank_without_sample",
    }
)
"""Nothing in them is of what adds up: held by the cell that runs all."""
OF_DEVICES_OF_RANKS = {"step_adamw_rank_without_sample": "batch_normalisation_over_replicas"}
"""Of ranks of several devices: what another case there, which steps too, holds."""
HELD_IN_PARTS = {
    "accumulated_momentum": "accumulated_and_clipped",
    "accumulated_step_weighted_by_counts": "accumulated_and_clipped, which steps too",
    "batch_normalisation_over_replicas": "statistics of a batch, in tests/adapters/tensorflow",
    "clip_norm": "accumulated_and_clipped",
    "clip_norm_with_a_scaled_loss": "accumulated_and_clipped, and what is scaled in "
    "tests/adapters/tensorflow",
    "clip_value": "accumulated_and_clipped",
    "global_clipnorm": "accumulated_and_clipped, and Keras's own in tests/adapters/tensorflow",
    "rank_without_sample_adamw": "step_adamw_rank_without_sample",
    "several_outputs": "replicas: outputs and their losses are whole on every rank",
    "loop_written_by_hand": "refused in tests/adapters/tensorflow, by one process and by ranks",
    "precision_float16": "weights that are halves, what is scaled and what is skipped, in "
    "tests/adapters/tensorflow",
    "recomputed_in_half": "recomputed, which keeps the type of forward",
    "shuffled": "uneven_momentum: whose order it is does not hang on parts",
}
"""Of a model in parts: those that others hold."""
HELD_IN_STAGES = {
    "accumulated_and_clipped": "one norm of all stages, and what Keras accumulates, in "
    "tests/adapters/tensorflow",
    "recomputed": "what is computed again draws the same, in tests/adapters/tensorflow",
}
"""Of a pipeline beside them."""
OF_ANY_PARTS = frozenset(
    {
        "accumulated_and_clipped",
        "copies",
        "recomputed",
        "step_adamw_rank_without_sample",
    }
)
"""What `split=tensor` shares with `sharded`, whose adapter it is, and which runs them all."""
FURTHER_NAME = frozenset({"uneven_momentum", "refusals"})
"""What `data_parallel` is asked beside `mirrored`, whose adapter it is."""


def fully(cell: Cell) -> bool:
    """Whether a cell runs every kind of what is no matter of devices: which layers are computed
    again, which level of precision, which way to round. One device does, and ranks in
    `make exhaustive`."""
    return not cell.core and (cell.replicas == 1 or cell.processes > 2)


def again(cell: Cell, case: str) -> bool:
    """Whether a case that a cell runs is left to `make exhaustive`, since another cell or case
    holds it."""
    if cell.strategy in _SPLIT:
        more = {"split=tensor": OF_ANY_PARTS, "split=pipeline": HELD_IN_STAGES}
        split = cell.options.partition(",")[0]
        return case in HELD_IN_PARTS or case in more.get(split, ())
    if cell.kind != "keras_tf":
        return case in OF_TORCH or (cell.core and case in OF_ANY_WIRE)
    if cell.strategy == "data_parallel":
        return case not in FURTHER_NAME
    if cell.processes < cell.replicas and case in OF_ANY_DEVICES:
        return True
    if cell.devices and cell.processes > 1:  # over devices, then over ranks
        return case in OF_DEVICES_OF_RANKS or (case in OF_ANY_WIRE and case not in NORMALISED)
    return case in HELD or (cell.core and case in OF_ANY_WIRE)
