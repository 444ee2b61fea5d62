"""Which torch cases each law is held over, by name: the tests import no framework."""

from __future__ import annotations

CORE = frozenset(
    {
        "even_momentum",
        "uneven_momentum",
        "uneven_adamw",
        "rank_without_sample_momentum",
        "rank_without_sample_adamw",
        "rank_dependent_initial_weights",
        "chained_modules",
        "criterion_is_a_module",
        "criterion_with_parameters",
        "several_outputs",
        "clipping_the_norm_between_backward_and_step",
        "attention_adamw",
        "shuffled_order",
        "evaluation_loop_by_hand",
        "moving_average_and_pickle",
        "training_goes_on_after_the_block",
        "batch_normalisation",
        "nothing_stays_patched",
        "files_are_rank_0s",
        "step_adamw_rank_without_sample",
        "step_weighted_with_a_count_of_zero",
        "loop_weighed_by_tokens",
        "accumulated_momentum",
        "accumulated_step_weighted_by_tokens",
        "clip_norm",
        "recomputed",
        "batch_norm_over_all_ranks",
        "a_step_that_overflows_on_one_rank",
        "compressed",
        "communications_of_an_update",
        "communicator",
        "ranks_that_built_different_models",
        "nested_blocks",
        "words_that_are_not_known",
        "one_device_under_several_ranks",
        "a_model_that_cannot_take_an_empty_batch",
    }
)
"""Every cell runs these."""

IN_PARTS_TOO = frozenset(
    {
        "accumulated_and_clipped",
        "attention_momentum",
        "clip_value",
        "in_precision_float16",
        "knobs_a_split_cannot_honour",
        "resuming_from_states",
        "weights_loaded_on_the_way",
    }
)
"""What a model in parts is asked always, beside the core."""
OF_REPLICAS = frozenset(
    {
        "even_momentum",
        "even_adamw",
        "uneven_adamw",
        "rank_without_sample_momentum",
        "drop_last",
        "loader_with_workers",
        "distributed_sampler",
        "samplers_of_the_user",
        "hand_sliced_batches",
        "batches_kept_and_used_again",
        "batches_that_are_dicts",
        "batches_moved_and_changed",
        "epochs_left_early",
        "shuffled_order",
        "sizes_of_a_rank_without_sample",
        "chained_modules",
        "criterion_is_a_module",
        "criterion_with_parameters",
        "several_outputs",
        "clipping_values_between_backward_and_step",
        "accumulation_by_hand",
        "keeping_the_best",
        "moving_average_and_pickle",
        "training_begins_after_the_block",
        "step_momentum",
        "step_and_loop_in_turn",
        "step_weighted_by_tokens",
        "loop_weighed_with_a_count_of_zero",
        "evaluate",
        "evaluation_loop_by_hand",
        "nested_blocks",
        "accumulated_momentum",
        "accumulated_adamw_rank_without_sample",
        "accumulated_with_schedules_and_clipping",
        "accumulated_by_two_optimizers",
        "accumulated_step",
        "accumulated_loop_weighed_by_tokens",
        "clip_norm",
        "clip_norm_in_a_step",
        "clipped_in_float16",
        "precision_bfloat16",
        "in_precision_O0",
        "in_precision_O2",
        "scaling_refused",
        "recompute_refused",
        "recomputed_in_micro_batches",
        "knobs_refused",
        "batch_norm_and_a_count_of_zero",
        "an_update_left_early",
    }
)
"""Nothing in them is of parts: held by 2 ranks over gloo, and of parts by others in the same cell
(`uneven_momentum`, `accumulated_and_clipped`, `in_precision_float16`, `resuming_from_states`)."""
OF_SHARDS = frozenset(
    {
        "accumulated_step_weighted_by_tokens",
        "attention_momentum",
        "batch_norm_over_all_ranks",
        "batch_normalisation",
        "clip_value",
        "clipping_the_norm_between_backward_and_step",
        "loop_weighed_by_tokens",
        "nothing_stays_patched",
        "recomputed",
        "step_weighted_with_a_count_of_zero",
        "training_goes_on_after_the_block",
    }
)
"""Of models in parts `zero=3` holds them; which parts there are is nothing to them. (That a norm is
of all parts, `tests/adapters/pytorch/parallel` holds of each way.)"""
FURTHER_WIRE = frozenset(
    {
        "uneven_momentum",
        "rank_without_sample_adamw",
        "rank_dependent_initial_weights",
        "attention_adamw",
        "batch_normalisation",
        "step_adamw_rank_without_sample",
        "step_weighted_with_a_count_of_zero",
        "loop_weighed_by_tokens",
        "batch_norm_over_all_ranks",
        "a_step_that_overflows_on_one_rank",
        "communications_of_an_update",
        "communicator",
        "ranks_that_built_different_models",
    }
)
"""What can go wrong by what adds up, or by a number of ranks that is no power of two: asked of 3
ranks always, and of further wires less `OF_THREE`."""
OF_THREE = frozenset(
    {
        "attention_adamw",
        "batch_normalisation",
        "loop_weighed_by_tokens",
        "rank_dependent_initial_weights",
        "step_adamw_rank_without_sample",
        "step_weighted_with_a_count_of_zero",
    }
)
"""Of those, what 3 ranks over gloo alone are asked always."""
IN_SHARED_MEMORY_TOO = frozenset(
    {
        "accumulated_and_clipped",
        "accumulated_step_weighted_by_tokens",
        "adasum",
        "an_update_left_early",
        "compressed",
        "criterion_with_parameters",
        "knobs_of_ddp",
        "several_outputs",
        "weights_loaded_on_the_way",
    }
)
"""What 2 ranks in shared memory, whose buckets are their own, are asked always beside those."""
FURTHER_NAME = frozenset({"uneven_momentum", "clip_norm", "communicator"})
"""What a further name of an adapter and a wire that other cells run is asked always."""

PLAIN_TOO = (
    "even_momentum",
    "even_adamw",
    "uneven_momentum",
    "uneven_adamw",
    "rank_without_sample_momentum",
    "rank_without_sample_adamw",
    "drop_last",
    "loader_with_workers",
    "rank_dependent_initial_weights",
    "chained_modules",
    "modules_in_a_list",
    "criterion_is_a_module",
    "criterion_with_parameters",
    "several_outputs",
    "called_twice_a_step",
    "two_models_in_turn",
    "penalty_on_the_weights",
    "clipping_the_norm_between_backward_and_step",
    "clipping_values_between_backward_and_step",
    "accumulation_by_hand",
    "frozen_then_trained",
    "parameters_without_a_part",
    "attention_momentum",
    "hand_sliced_batches",
    "batches_kept_and_used_again",
    "epochs_left_early",
    "batches_that_are_dicts",
    "batches_moved_and_changed",
    "parts_called_from_the_start",
    "a_part_beside_the_whole_in_one_backward",
    "gradient_of_a_gradient",
    "recomputed_in_backward",
    "closure_given_to_the_optimizer",
    "a_layer_put_in_later",
    "weights_loaded_on_the_way",
    "evaluation_loop_by_hand",
    "training_goes_on_after_the_block",
    "training_begins_after_the_block",
    "keeping_the_best",
    "resuming_from_states",
    "moving_average_and_pickle",
)
"""Cases that also run without dream: `single` itself is held against plain torch."""

WITH_DREAM = (
    "shuffled_order",
    "prepared_what_was_made_before",
    "step_momentum",
    "step_adamw_rank_without_sample",
    "step_and_loop_in_turn",
    "step_weighted_by_tokens",
    "step_weighted_with_a_count_of_zero",
    "loop_weighed_by_tokens",
    "loop_weighed_with_a_count_of_zero",
)
RIGHT_OR_REFUSED = (
    "one_backward_for_each_loss",
    "gradients_asked_for_by_hand",
    "forward_called_by_name",
    "a_part_after_the_whole_in_its_own_backward",
    "a_part_in_every_other_step",
)
STEPS = (
    "step_momentum",
    "step_adamw_rank_without_sample",
    "step_and_loop_in_turn",
    "step_weighted_by_tokens",
    "step_weighted_with_a_count_of_zero",
)

ACCUMULATED = (
    "accumulated_momentum",
    "accumulated_adamw_rank_without_sample",
    "accumulated_with_schedules_and_clipping",
    "accumulated_by_two_optimizers",
    "accumulated_step",
    "accumulated_step_weighted_by_tokens",
    "accumulated_loop_weighed_by_tokens",
    "accumulated_and_clipped",
)
"""`single` runs these without accumulation, and once with it."""
CLIPPED = ("clip_norm", "clip_value")
LEVELS = tuple(f"in_precision_{name}" for name in ("float16", "O0", "O2", "O3"))
KNOBS = frozenset(
    {
        *LEVELS,
        "cast_but_for_norms",
        "a_step_that_overflows_on_one_rank",
        "clipped_in_float16",
        "scaling_refused",
        "recomputed",
        "recomputed_in_micro_batches",
        "recomputed_in_threads",
        "recompute_refused",
        "compressed",
        "adasum",
        *ACCUMULATED,
        *CLIPPED,
        "clip_norm_in_a_step",
        "communications_of_an_update",
        "precision_bfloat16",
        "batch_norm_over_all_ranks",
        "batch_norm_and_a_count_of_zero",
        "knobs_of_ddp",
        "knobs_refused",
        "knobs_a_split_cannot_honour",
        "an_update_left_early",
    }
)
_REPLICAS = frozenset({"single", "mirrored", "multi_worker_mirrored", "horovod"})
_TRAVELLING = frozenset({"compressed", "adasum", "knobs_of_ddp"})
"""What says something of replicas under DDP only."""
_IN_BUCKETS = frozenset({"communications_of_an_update"})
"""What counts sums over ranks, and is for those who have no others than those of gradients."""
_IN_ONE_PROCESS = frozenset(
    {
        *ACCUMULATED,
        *CLIPPED,
        "clip_norm_in_a_step",
        "precision_bfloat16",
        *LEVELS,
        "a_step_that_overflows_on_one_rank",
        "clipped_in_float16",
        "scaling_refused",
        "recomputed_in_threads",
        "recompute_refused",
        "knobs_refused",
        "an_update_left_early",
    }
)
"""What is no matter of ranks."""
_NORMALISED = {
    "batch_norm_over_all_ranks",
    "batch_norm_and_a_count_of_zero",
    "cast_but_for_norms",
}
"""What takes threads that wait for one another."""


def takes_knob(strategy: str, options: str, case: str) -> bool:
    """Whether a cell has the options that a case of KNOBS is about."""
    if case == "knobs_a_split_cannot_honour":
        return strategy not in _REPLICAS and not ("zero=1" in options or "split=pipe" in options)
    if case == "recomputed_in_threads":
        return strategy == "data_parallel" or "split=layers" in options
    if strategy in _REPLICAS:
        return True
    if case in _TRAVELLING:
        return False
    if strategy == "data_parallel":
        return case in _IN_ONE_PROCESS | _NORMALISED
    if "split=layers" in options:
        return case in _IN_ONE_PROCESS
    if "zero=1" in options:
        return True
    if "zero=" in options or "split=tensor" in options:
        more = "split=tensor" in options or "data=" in options
        return not (more and case in _IN_BUCKETS)
    return False


_PARTS: dict[str, str] = {
    "penalty_on_the_weights": "torch refuses to add a loss of shards to one of whole tensors; "
    "tests/adapters/pytorch/parallel holds that, and a penalty reckoned in the forward pass",
    "gradients_asked_for_by_hand": "torch refuses: what the model holds between steps is in parts",
    "moving_average_and_pickle": "no rank has a whole model to pickle or to train alone; "
    "tests/adapters/pytorch/parallel holds copies, and the refusal to pickle",
    "files_are_rank_0s": "no rank has a whole model to write; "
    "tests/adapters/pytorch/parallel holds the refusal",
    "a_part_called_alone": "a part adds its own gradients up, so that is right and not refused",
    "words_that_are_not_known": "asks for options that these strategies have not",
}
_CUT_LAYERS: dict[str, str] = _PARTS | {
    "gradient_of_a_gradient": "refused by name; tests/adapters/pytorch/parallel holds that",
}
_ONE_COPY: dict[str, str] = {
    "batch_smaller_than_the_replicas": "no batch is smaller than one copy of the model",
    "a_model_that_cannot_take_an_empty_batch": "one copy always has a sample",
}


def without_meaning(options: str, replicas: int) -> dict[str, str]:
    """The cases that say nothing of a cell whose strategy splits the model, and why."""
    if "split=tensor" in options:
        return _CUT_LAYERS | (_ONE_COPY if replicas == 1 else {})
    if "zero=1" in options:
        return {"words_that_are_not_known": _PARTS["words_that_are_not_known"]}
    return _PARTS if "zero=" in options else {}


def again(strategy: str, reduction: str, options: str, processes: int, case: str) -> bool:
    """Whether a case is left to `make exhaustive`, since a cell that runs them all holds it: 2
    ranks over gloo, `data_parallel` for one process, `zero=3` for models in parts."""
    if strategy == "multi_worker_mirrored" or (strategy, reduction) == ("mirrored", "horovod"):
        return case not in FURTHER_NAME
    if "zero=" in options and case in OF_REPLICAS:
        return True
    if "zero=1" in options or "split=tensor" in options:
        return case not in (CORE | IN_PARTS_TOO) - OF_REPLICAS - OF_SHARDS
    if "split=layers" in options:
        held = OF_REPLICAS | OF_SHARDS
        return case not in ((CORE | IN_PARTS_TOO) - held) | {"recomputed_in_threads"}
    if reduction == "shared_memory":
        return case not in (FURTHER_WIRE - OF_THREE) | IN_SHARED_MEMORY_TOO
    if strategy == "horovod":
        return case not in FURTHER_WIRE - OF_THREE
    return processes > 2 and case not in FURTHER_WIRE
