"""Which torch cases say nothing of cells in one process, or of a pipeline, and why."""

from __future__ import annotations

from contract_cells import Cell

_ONE_PROCESS: dict[str, str] = {
    "batch_smaller_than_the_replicas": "the devices that get no sample are left out, and it counts",
    "one_device_under_several_ranks": "there is one rank",
    "ranks_that_built_different_models": "there is one rank",
    "a_part_called_alone": "a part that is called by itself is distributed by itself",
    "a_model_made_outside": "it runs on one device, and is right",
    "a_model_that_cannot_take_an_empty_batch": "no device gets an empty batch",
    "words_that_are_not_known": "asks for options that these strategies have not",
    "sizes_of_a_rank_without_sample": "there is one rank, whose batches are whole",
    "samplers_of_the_user": "there is one rank, whose batches are whole",
    "dropout_masks": "asks for a rank's own masks; the threads of one rank draw in turn",
    "single_samples_and_shapeless_parameters": "they need not be dealt, and shapes come by a call",
    "distributed_sampler": "asks for the sampler of a rank among several",
    "parameters_without_a_part": "asks for an option that these strategies have not, nor need",
}
_FLOWS: dict[str, str] = {
    "gradients_asked_for_by_hand": "refused by torch: parameters gather theirs in backward alone",
    "gradient_of_a_gradient": "refused by torch: layers on devices are differentiated once",
}
_PIPELINE = frozenset(
    {
        "step_momentum",
        "step_adamw_rank_without_sample",
        "step_weighted_by_tokens",
        "step_weighted_with_a_count_of_zero",
        "communicator",
        "distributed_sampler",
        "nested_blocks",
        "one_device_under_several_ranks",
    }
)
_SHALLOW = dict.fromkeys(
    (
        "step_momentum",
        "step_adamw_rank_without_sample",
        "step_weighted_by_tokens",
        "step_weighted_with_a_count_of_zero",
    ),
    "its model has three layers, and there are four stages",
)
_OWNED = "the user's own loop trains in it, and a pipeline owns the step"


def left_out(cell: Cell, case: str) -> str:
    """Why a case says nothing of a cell; empty where it does."""
    if case in _SHALLOW and ("interleaved" in cell.options or cell.processes // cell.replicas > 2):
        return _SHALLOW[case]
    if "split=pipeline" in cell.options:
        return "" if case in _PIPELINE or case.startswith("owned_") else _OWNED
    if case.startswith("owned_") and cell.strategy != "single":
        return "for those who own the step"
    if cell.strategy == "data_parallel":
        return _ONE_PROCESS.get(case, "")
    if "split=layers" in cell.options:
        return (_ONE_PROCESS | _FLOWS).get(case, "")
    return ""
