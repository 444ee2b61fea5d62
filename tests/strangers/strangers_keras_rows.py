"""Keras's rows of the table, on both backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strangers_keras_mesh import ON_A_MESH
from strangers_rows import EQUAL, Row

TENSORFLOW, TORCH = "keras-tensorflow", "keras-torch"
BOTH = (TENSORFLOW, TORCH)
ONE_PROCESS = "mirrored:devices=2"  # replicas of one process
COUPLED = "samples of a batch are coupled in the loss: no share of it has an exact gradient"
ADAM = "Adam divides by the root of small squares: rounding grows to 1e-5"
BY_HAND = "Take the step by strategy.train_step(model, loss, optimizer), or use model.fit"
TAPE = "every rank computes whole batches; of variables in parts only dream's step has gradients"
IN_PARTS = {"sharded": BY_HAND}
ONE_STEP = "Several devices in one process run one step per call"
RACE = "two generators draw from one source in threads of TensorFlow's"

CELLS = {
    TENSORFLOW: (("mirrored", (2, 3)), ("horovod", (3,)), ("sharded", (2,)), (ONE_PROCESS, (1,))),
    TORCH: (("mirrored", (2, 3)), ("horovod", (3,))),
}
TWO = {TENSORFLOW: (("mirrored", (2,)),), TORCH: ()}
TWO_AND_DEVICES = {TENSORFLOW: (("mirrored", (2,)), (ONE_PROCESS, (1,))), TORCH: ()}
TWO_AND_SHARDED = {TENSORFLOW: (("mirrored", (2,)), ("sharded", (2,))), TORCH: ()}
TWO_EACH = {TENSORFLOW: (("mirrored", (2,)), (ONE_PROCESS, (1,))), TORCH: (("mirrored", (2,)),)}
FURTHER = {
    TENSORFLOW: (("horovod", (3,)), ("sharded", (2,)), (ONE_PROCESS, (1,))),
    TORCH: (("mirrored", (3,)), ("horovod", (3,))),
}
TWO_ON_TORCH = {TORCH: (("mirrored", (2,)),)}


def _rows(
    script: str,
    *,
    cells: Mapping[str, Sequence[tuple[str, tuple[int, ...]]]] = CELLS,
    expect: str = EQUAL,
    logs: str = "",
    but: Mapping[str, str] | None = None,
    tolerance: float = 1e-6,
    reason: str = "",
    sample: tuple[str, ...] = (),
    only: str = "",
) -> list[Row]:
    """Rows for each backend that a script runs on: its name begins with the only one, if so.

    sample: backends that `make test` runs it on. only: the backend that these rows are for.
    """
    if script in ON_A_MESH and not but:
        but, why = {"sharded": ON_A_MESH[script]}, "DTensor does it otherwise, and it is said"
        reason = f"{reason}; {why}" if reason else why
    kind = script.partition("_")[0]
    backends = {"tf": (TENSORFLOW,), "torch": (TORCH,)}.get(kind, BOTH)
    return [
        Row(
            script,
            backend,
            strategies=(strategy,),
            ranks=ranks,
            expect=expect,
            logs=logs,
            but=but or {},
            tolerance=tolerance,
            reason=reason,
            sample=("mirrored",) if backend in sample else (),
        )
        for backend in backends
        if only in ("", backend)
        for strategy, ranks in cells[backend]
    ]


EXACT = (
    "accumulation",
    "add_loss_sum",
    "batchnorm",
    "checkpoint_best",
    "class_weight",
    "clipnorm",
    "custom_loss_scalar",
    "custom_metric",
    "dense_in_order",
    "distillation",
    "early_stopping",
    "ema",
    "evaluating_callback",
    "fine_tuning",
    "float64_targets",
    "from_generator",
    "from_tensor_slices",
    "generator_ends",
    "hyperparameters",
    "kfold",
    "logs_in_files",
    "loss_sum",
    "lr_schedule",
    "lr_scheduler",
    "masked_lm",
    "masked_tagging",
    "mini_gpt",
    "noise_layers",
    "one_then_another",
    "pseudo_labels",
    "pydataset",
    "pydataset_augmented",
    "recommender",
    "reduce_lr",
    "regularizers",
    "sample_weight",
    "save_load",
    "seq2seq",
    "shared_layers",
    "shuffle_by_hand",
    "siamese",
    "subclassed",
    "tabular",
    "text_from_raw",
    "text_lstm",
    "tf_custom_step",
    "tf_diffusion",
    "tf_gan",
    "tf_jit",
    "tf_own_trackers",
    "tf_vae",
    "timeseries",
    "token_weights",
    "torch_custom_step",
    "torch_dataloader",
    "torch_gan",
    "torch_loop",
    "torch_loop_keras_optimizer",
    "torch_own_trackers",
    "torch_vae",
    "train_on_batch",
    "transformer_classifier",
    "two_fits",
    "unet",
    "vae_add_loss",
    "vae_add_loss_summed",
    "vit",
)

HELD_ON_TWO = (
    "activity_regularizer",
    "gan_on_batch",
    "metrics_of_many_kinds",
    "multi_output",
    "optimizer_of_many_habits",
    "rate_finder",
    "stochastic_depth",
    "writes_text_each_epoch",
)
"""Exact too, and held where they were tried: on two ranks of TensorFlow's."""

OF_MANY_KINDS = (
    "accumulates_over_fits",
    "anchored_to_what_was",
    "average_of_epochs",
    "boosted_weights",
    "counts_its_calls",
    "dropouts_of_many_kinds",
    "ema_overwrites",
    "freezes_half_way",
    "generator_by_steps",
    "lookahead_by_callback",
    "loss_scale_in_float32",
    "metric_with_a_table",
    "noise_by_many_draws",
    "noise_in_the_optimizer",
    "on_batch_by_losses",
    "optimizer_that_clips_by_history",
    "optimizers_by_turns",
    "outputs_in_dicts",
    "pydataset_grows",
    "rate_by_batch_loss",
    "scanned_in_a_layer",
    "teach_each_other",
    "weights_brought_back",
    "weights_shaken",
)
"""Callbacks, optimizers and data of many kinds, exact on two ranks of either backend, and on two
devices of one process."""
OF_PLAIN_SHAPES = (
    "annealed_by_variable", "data_changed_by_callback", "graph_of_papers", "labels_ignored",
    "layers_that_measure", "rows_attend_others", "similarities", "tf_buckets", "tf_ddim",
    "tf_equation", "tf_skipgrams", "tf_steps_uneven", "tf_triplets", "tf_two_rates",
)  # fmt: skip
"""What guides, textbooks and notebooks do, exact on two ranks of the backends that they run on."""
OF_PLAIN_SHAPES_ON_TORCH = (
    "adapters_low_rank", "best_by_validation", "clustering_deep", "copied_and_pickled",
    "cox_and_quantiles", "curriculum", "domains_reversed", "epochs_one_by_one", "every_loss",
    "exported", "fits_within_fits", "logs_gradients", "masked_batchnorm", "means_swapped",
    "missing_labels", "parts_cloned_nested", "pruned_by_masks", "pydataset_by_workers",
    "q_learning", "rules_of_ones_own", "steps_overridden", "uncertain_by_dropout", "waves_dilated",
    "written_words", "torch_conditional_gan", "torch_dataset_of_dicts", "torch_remat_by_keras",
)  # fmt: skip
"""The same, read on two ranks of torch."""
ANSWERS = ("rows_attend_others", "similarities")
"""Those of them that predict by whole batches."""
TWO_OF_EACH = {TENSORFLOW: (("mirrored", (2,)),), TORCH: (("mirrored", (2,)),)}
NOT_LAID_OUT = "variables that dream has not laid out"
DRIFTED = "The replicas have drifted apart"
UNKNOWN = "a variable that Keras does not know is stepped by each replica for itself"
NO_MEAN = "gradients of a batch that are no mean of its parts'"
SHARED = "gradients count as those of a mean over samples"
COUPLES = "gives a sample another output in a part of its batch"
STATE = "is a state that the model's call changes by its batch"
OF_ITS_OWN = (
    "only the script knows what it divides by, and a part of a batch gives another gradient"
)
EXTREMES = "a largest value, or a count, of a share is not that of the batch"
ADDED = "add to the loss gives one number for a batch"
SAID_ON_TORCH = {
    "attention_grouped": ("gives one number for a batch", OF_ITS_OWN),
    "checkpoint_that_decays": ("The ranks' optimizers differ", "what writes runs on rank 0"),
    "experts_balanced": (ADDED, COUPLED),
    "partial_likelihood": ("gives a sample another value in a part of its batch", COUPLED),
    "spread_regularised": (ADDED, COUPLED),
}

ROWS: list[Row] = [
    *_rows("autoencoder"),
    *_rows("mnist_dropout", sample=(TENSORFLOW,)),
    *_rows("augmentation", sample=(TORCH,)),
    *(row for script in EXACT for row in _rows(script)),
    *_rows("adam", tolerance=1e-5, reason=ADAM),
    *_rows("adamw_warmup", tolerance=1e-5, reason=ADAM),
    *_rows("resume_by_epoch", tolerance=1e-5, reason=ADAM),
    *_rows("generator", only=TORCH),
    *_rows("generator", only=TENSORFLOW, expect="read ahead in threads", reason=RACE),
    *_rows(
        "tf_steps_per_execution",
        but={ONE_PROCESS: ONE_STEP, "sharded": "takes one compiled step at a time"},
        reason="devices of one process, and split models, take no steps in a loop of TensorFlow's",
    ),
    *_rows(
        "constraints_and_spectra",
        cells={TENSORFLOW: (("mirrored", (2, 3)), (ONE_PROCESS, (1,))), TORCH: ()},
        tolerance=3e-6,
        reason="weights that begin 6e-8 apart end 1e-6 apart by themselves: a spectrum is followed",
    ),
    *(row for script in HELD_ON_TWO for row in _rows(script, cells=TWO)),
    *(row for script in OF_MANY_KINDS for row in _rows(script, cells=TWO_EACH)),
    *_rows(
        "activity_of_many_kinds",
        expect="What layers of 'sequential' add to the loss gives one number for a batch",
        reason=COUPLED,
        cells=TWO_EACH,
    ),
    *_rows(
        "loss_with_a_memory",
        expect="changes a variable of its own by its batch",
        reason="each replica's loss remembers its shares",
        cells=TWO_EACH,
    ),
    *(row for script in OF_PLAIN_SHAPES for row in _rows(script, cells=TWO_OF_EACH)),
    *(
        row
        for script in OF_PLAIN_SHAPES_ON_TORCH
        for row in _rows(script, cells=TWO_ON_TORCH, only=TORCH)
    ),
    *(
        row
        for script in (*OF_PLAIN_SHAPES, *OF_PLAIN_SHAPES_ON_TORCH)
        if script not in (*ANSWERS, "exported")
        for row in _rows(script, cells=FURTHER)
    ),
    *_rows("exported", cells=FURTHER, only=TORCH),  # on TensorFlow it fails by itself
    *(
        row
        for script in ANSWERS
        for row in _rows(script, but={ONE_PROCESS: COUPLES}, reason=COUPLED, cells=FURTHER)
    ),
    *(row for cells in (TWO, FURTHER) for row in _rows("series_as_tagged", cells=cells)),
    *(
        row
        for cells in (TWO_OF_EACH, FURTHER)
        for row in _rows(
            "scores_of_a_batch",
            logs="gives one number for a batch, and replicas average",
            reason=EXTREMES,
            cells=cells,
        )
    ),
    *(
        row
        for script, (expect, reason) in SAID_ON_TORCH.items()
        for cells, only in ((TWO_ON_TORCH, TORCH), (FURTHER, ""))
        for row in _rows(script, expect=expect, reason=reason, cells=cells, only=only)
    ),
    *(
        row
        for cells in (TWO, FURTHER)
        for row in (
            *_rows("tf_rays", logs="make figures of their own", reason=EXTREMES, cells=cells),
            *_rows("tf_barlow", expect=NO_MEAN, reason=COUPLED, cells=cells),
            *_rows(
                "tf_accumulates_by_hand",
                expect=DRIFTED,
                but={ONE_PROCESS: "devices of one process cannot meet", "sharded": NOT_LAID_OUT},
                reason="each replica adds gradients of its own up in variables of TensorFlow's",
                cells=cells,
            ),
        )
    ),
    *_rows("figures_of_a_batch", logs="make figures of their own", reason=EXTREMES, cells=TWO_EACH),
    *_rows("tf_wgan_gp", cells=TWO_AND_SHARDED),
    *_rows("activity_regularizer", only=TORCH, cells=TWO_ON_TORCH),
    *_rows("tf_step_masked", expect=NO_MEAN, reason=OF_ITS_OWN, cells=TWO),
    *_rows("tf_step_summed", expect=SHARED, reason=OF_ITS_OWN, cells=TWO),
    *_rows("torch_step_masked", expect=NO_MEAN, reason=OF_ITS_OWN, cells=TWO_ON_TORCH),
    *_rows("torch_step_summed", expect=SHARED, reason=OF_ITS_OWN, cells=TWO_ON_TORCH),
    *_rows("tf_simclr", expect=NO_MEAN, reason=COUPLED, cells=TWO),
    *_rows("activation_range", expect=STATE, reason=EXTREMES, cells=TWO_AND_SHARDED),
    *_rows("vq_ema", expect=STATE, reason=EXTREMES, cells=TWO),
    *_rows(
        "metric_of_extremes", logs="is more than a sum over samples", reason=EXTREMES, cells=TWO
    ),
    *_rows("lookahead_by_optimizer", only=TORCH, cells=TWO_ON_TORCH),
    *_rows(
        "lookahead_by_optimizer",
        expect="build is called once, before the first step",
        reason="plain Keras traces what build assigns into each step",
        only=TENSORFLOW,
        cells=TWO_AND_DEVICES,
    ),
    *_rows("tf_own_variable", expect=DRIFTED, reason=UNKNOWN, cells=TWO_AND_DEVICES),
    *_rows("tf_own_variables_listed", expect=DRIFTED, reason=UNKNOWN, cells=TWO_AND_DEVICES),
    *_rows("torch_own_parameter", expect=DRIFTED, reason=UNKNOWN, cells=TWO_ON_TORCH),
    *_rows("torch_module_inside", cells=TWO_ON_TORCH, sample=(TORCH,)),
    *_rows("torch_loop_module_inside", cells=TWO_ON_TORCH),
    *_rows("torch_uncertain_predictions", cells=TWO_ON_TORCH),
    *_rows(
        "eager_step", but={"sharded": "takes one compiled step at a time"}, reason="it is split"
    ),
    *_rows("minibatch_deviation", expect=COUPLES, reason=COUPLED, sample=(TENSORFLOW,)),
    *_rows("tf_two_updates"),
    *_rows("tf_sharpness_aware", expect=DRIFTED, reason="each replica goes uphill for itself"),
    *_rows(
        "torch_step_by_torchs_optimizer",
        expect="gradient was not averaged over the ranks",
        reason="torch's optimizer steps past dream's step",
        cells=TWO_ON_TORCH,
    ),
    *_rows("torch_diffusion", cells=TWO_ON_TORCH),
    *_rows("torch_noise_by_torch", cells=TWO_ON_TORCH),
    *_rows(
        "tf_noise_by_tf",
        expect="draws in a step for each replica by itself",
        reason="TensorFlow gives its own random ops no rows",
        cells=TWO_AND_DEVICES,
    ),
    *_rows("teacher_centred"),
    *_rows("centre_loss", expect=STATE, reason=OF_ITS_OWN),
    # These may be refused, or said: fixed before any result was seen.
    *_rows("contrastive_in_batch", expect="gives one number for a batch", reason=COUPLED),
    *_rows("correlation_loss", expect="gives one number for a batch", reason=COUPLED),
    *_rows(
        "hard_samples_weigh_most",
        expect="gives a sample another value in a part of its batch",
        reason=COUPLED,
        sample=(TENSORFLOW,),
    ),
    *_rows("mixup", expect="A shuffle inside a training step couples samples", reason=COUPLED),
    *_rows("dice_over_batch", expect="gives one number for a batch", reason=COUPLED),
    *_rows(
        "tf_stateful_rnn",
        expect="A stateful layer keeps a row",
        reason="its state has a row for each of a fixed batch",
    ),
    *_rows("mixed_float16", tolerance=2e-3, reason="each rank rounds to half precision"),
    *_rows("tf_tape_batchnorm", but=IN_PARTS, reason=TAPE),
    *_rows("tf_tape_loop", but=IN_PARTS, reason=TAPE),
    *_rows("tf_reinforce", but=IN_PARTS, reason=TAPE),
]
