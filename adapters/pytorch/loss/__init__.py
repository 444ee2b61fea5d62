"""The loss of a backward pass: what it is a mean over, and its value over all ranks."""

from dream.adapters.pytorch.loss.observer import LossObserver as LossObserver
from dream.adapters.pytorch.loss.weigh import MicroWeights as MicroWeights
from dream.adapters.pytorch.loss.weigh import count_of as count_of
from dream.adapters.pytorch.loss.weigh import weight_of as weight_of
