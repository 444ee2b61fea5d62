"""The loss of a backward pass: what it is a mean over, and its value over all ranks."""

from dream.adapters.pytorch.loss.observer import LossObserver as LossObserver
