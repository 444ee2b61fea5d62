"""The loss of a backward pass: what it is a mean over, and its value over all ranks."""

from dream.adapters.pytorch.loss.factors import MicroWeights as MicroWeights
from dream.adapters.pytorch.loss.factors import count_of as count_of
from dream.adapters.pytorch.loss.factors import weight_of as weight_of
from dream.adapters.pytorch.loss.observer import LossObserver as LossObserver
