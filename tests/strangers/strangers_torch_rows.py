"""torch's rows of the table. Which may be told something in place of being equal was fixed before
any result was seen: those where the script asks of a batch what its parts cannot answer."""

from __future__ import annotations

from strangers_rows import Row

ADAM = "Adam divides by the root of small squares, which enlarges the rounding of sums"
CURVATURE = "curvature is estimated from small differences, which enlarges the rounding of sums"

SHARDS = "FSDP2 cannot do it, and the error says so and what can"
NEAR = "the parts of the loss count differently, so the value that is read is near the global one"

ROWS: list[Row] = [
    Row("accumulation_by_hand"),
    Row(
        "actor_critic_minibatches",
        but={"sharded": "in no module that can gather it"},
        reason=SHARDS,
    ),
    Row(
        "adamw_warmup",
        but={"sharded": "A parametrization with buffers"},
        tolerance=1e-5,
        reason=f"{ADAM}; {SHARDS}",
    ),
    Row(
        "augmentation_in_dataset",
        expect="dataset",
        reason="a rank that takes out its own samples draws only for them",
    ),
    Row("bucketed_batches"),
    Row(
        "checkpoint_in_the_middle",
        but={"sharded": "would write that part alone"},
        reason="a rank that saves alone cannot ask the others for their parts",
    ),
    Row("checkpointed_activations"),
    Row("class_weights", sample=("mirrored", "sharded")),
    Row("classifier_with_dropout", sample=("mirrored",)),
    Row("clipping_by_hand"),
    Row("compiled_model"),
    Row(
        "contrastive_in_batch",
        expect="all_gather",
        but={"sharded": "along their first dim, and a number has none"},
        reason=f"every sample's loss looks at all others of the batch; {SHARDS}",
    ),
    Row("diffusion", sample=("mirrored",)),
    Row("distillation"),
    Row("evaluation_without_no_grad"),
    Row("focal_loss"),
    Row(
        "functional_call",
        expect="parameters that were computed",
        but={"sharded": "meets an ordinary tensor"},
        reason="whose parameters they are cannot be seen in the call, and the error says so",
    ),
    Row(
        "functional_gradients",
        expect="torch.func",
        reason="no backward is run that could carry the gradient to other ranks",
    ),
    Row("gan_two_optimizers", sample=("mirrored", "sharded")),
    Row(
        "gpt_get_batch",
        tolerance=1e-5,
        reason=ADAM,
        sample=(
            "mirrored",
            "sharded",
        ),
    ),
    Row("gradient_penalty"),
    Row("graph_full_batch"),
    Row(
        "hardest_samples",
        expect="TopkBackward0",
        reason="which samples are the hardest is a matter of the whole batch",
    ),
    Row("infinite_loader"),
    Row("k_fold"),
    Row("lbfgs_batches", tolerance=6e-5, reason=CURVATURE + "; by 2e-5, alone, in halves"),
    Row(
        "lbfgs_closure",
        tolerance=6e-5,
        reason=CURVATURE + "; by 2e-5, alone, in thirds",
        sample=("mirrored",),
    ),
    Row("losses_weighed_by_uncertainty"),
    Row("library_language_model", needs=("transformers", "datasets", "torchmetrics")),
    Row("library_low_rank", needs=("transformers", "peft", "torchmetrics")),
    Row("masked_mean_by_hand", sample=("mirrored",)),
    Row("masked_words"),
    Row(
        "matrix_factorisation_sparse",
        but={"sharded": "cannot reduce sparse gradients"},
        reason=SHARDS,
        sample=("mirrored",),
    ),
    Row(
        "mixup",
        expect="randperm",
        reason="a permutation of the batch mixes samples that ranks do not share",
    ),
    Row("momentum_queue", expect="queue", reason="each batch is written into a buffer, in order"),
    Row("moving_average_of_weights"),
    Row("multi_task_heads", sample=("mirrored",)),
    Row("own_autograd_function"),
    Row("packed_sequences"),
    Row("padded_to_the_longest"),
    Row("physics_informed", sample=("sharded",)),
    Row("plateau_and_early_stop"),
    Row("policy_gradient_episodes"),
    Row("prefetcher"),
    Row("radiance_field"),
    Row("regression_in_order", sample=("mirrored", "sharded")),
    Row("replay_memory"),
    Row("replayed_second_loader", expect="near the global one", reason=NEAR),
    Row("residual_net_batchnorm"),
    Row("rnn_hidden_carried_over"),
    Row("root_mean_square_error", expect="all_gather", reason="the root of a mean is no mean"),
    Row(
        "running_loss_over_dataset",
        expect="len(",
        reason="sizes and counts that the loop adds up are the rank's own",
    ),
    Row("sampler_with_replacement"),
    Row("script_that_distributes_itself", sample=("mirrored",)),
    Row("search_over_learning_rates"),
    Row(
        "segmentation_dice",
        expect="all_gather",
        reason="a ratio of two sums over the batch is no mean over anything",
    ),
    Row("segmentation_ignored_pixels"),
    Row("sharpness_aware"),
    Row("siamese_pairs", sample=("mirrored",)),
    Row("speech_ctc"),
    Row("stochastic_weight_averaging"),
    Row("stream_of_samples"),
    Row(
        "style_transfer",
        but={"sharded": "no module that was made in the block and split holds it"},
        reason="the image that is trained is a tensor of no module",
    ),
    Row("sum_over_a_constant"),
    Row("super_resolution"),
    Row("text_to_text", sample=("horovod",)),
    Row("token_mean_language_model", sample=("mirrored",)),
    Row("transfer_then_unfreeze"),
    Row("translation_teacher_forcing"),
    Row("two_loaders_zipped", expect="near the global one", reason=NEAR),
    Row("two_passes_dropout"),
    Row("vae_summed_loss", sample=("mirrored",)),
    Row("vector_quantiser", expect="codebook", reason="a buffer follows the batch"),
    Row("vision_transformer_drop_path"),
    Row(
        "weight_from_gradients",
        but={"sharded": "appears to not have been used in the graph"},
        reason="the graph holds the gathered weight, and torch says that the shard is not in it",
    ),
    Row("weighted_sampler"),
]
