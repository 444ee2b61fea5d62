"""What part of training a Python stack in Keras's files is in, on any backend."""

from __future__ import annotations

from pathlib import Path

import keras

from dream.stall.phases import Phase, PhaseRule

_SOURCE = Path(keras.__file__).parent / "src"
_TRAINERS = [
    str(_SOURCE / "backend" / backend / "trainer.py") for backend in ("tensorflow", "torch")
]

RULES = (
    *(PhaseRule(trainer, Phase.EVALUATION, ("evaluate", "predict")) for trainer in _TRAINERS),
    PhaseRule(f"{_SOURCE / 'trainers' / 'data_adapters'}/", Phase.INPUT),
    PhaseRule(str(_SOURCE / "trainers" / "epoch_iterator.py"), Phase.INPUT, ("_get_iterator",)),
    PhaseRule(f"{_SOURCE / 'layers'}/", Phase.FORWARD, ("__call__",)),
    PhaseRule(f"{_SOURCE / 'optimizers'}/", Phase.OPTIMIZER, ("apply", "apply_gradients")),
    PhaseRule(f"{_SOURCE / 'saving'}/", Phase.WRITING,
              ("save_model", "save_weights", "save_weights_only")),
    PhaseRule(f"{_SOURCE / 'saving'}/", Phase.LOADING,
              ("load_model", "load_weights", "load_weights_only")),
)  # fmt: skip
