"""What `sharded` says of Keras's scripts on TensorFlow."""

from __future__ import annotations

MESH_DRAWS = "draws on each device of the mesh by itself"
MESH_TIME = "DTensor cannot split a layer that loops over time"
ON_A_MESH = {
    "augmentation": "DTensor cannot split a convolution of each channel",
    "ema": "This callback swaps whole weights",
    "logs_in_files": "This callback reads weights on the rank that writes",
    "tabular": "cannot split this operation over a mesh",
    "siamese": "cannot split this operation over a mesh",
    "unet": "cannot split this operation over a mesh",
    "tf_jit": "XLA cannot compile a step that is split",
    "curriculum": "cannot split this operation over a mesh",
    "missing_labels": "cannot split this operation over a mesh",
    "partial_likelihood": "cannot split this operation over a mesh",
    "epochs_one_by_one": "This callback reads weights on the rank that writes",
    "means_swapped": "This callback swaps whole weights",
    "pydataset_by_workers": "DTensor cannot split a convolution of each channel",
    "pruned_by_masks": "got a regular tensor for input",  # TensorFlow's own error
    "tf_barlow": "draws in a step on each device of the mesh by itself",
    "tf_ddim": "variables that dream has not laid out",
    "tf_skipgrams": "is added up by entry before",
    "tf_triplets": "Unable to automatically build the model",  # Keras's own error
    "resume_by_epoch": "This callback reads weights on the rank that writes",
    **dict.fromkeys(
        (
            "masked_tagging", "seq2seq", "shared_layers", "text_lstm", "timeseries",
            "token_weights", "tf_stateful_rnn", "masked_batchnorm", "series_as_tagged",
            "tf_buckets", "waves_dilated", "written_words",
        ),
        MESH_TIME,
    ),
    **dict.fromkeys(
        (
            "class_weight", "early_stopping", "evaluating_callback", "fine_tuning",
            "hyperparameters", "kfold", "mini_gpt", "mnist_dropout", "noise_layers",
            "one_then_another", "pseudo_labels", "reduce_lr", "save_load", "subclassed",
            "text_from_raw", "tf_diffusion", "adam", "transformer_classifier",
            "two_fits", "vit", "mixup", "tf_own_trackers", "tf_vae", "tf_wgan_gp", "vae_add_loss",
            "vae_add_loss_summed", "train_on_batch", "annealed_by_variable", "attention_grouped",
            "best_by_validation", "fits_within_fits", "tf_rays", "tf_steps_uneven",
            "uncertain_by_dropout",
        ),
        MESH_DRAWS,
    ),
}  # fmt: skip
