"""Checkpoints of Keras models: the names in them, what they hold, and the callback of fit."""
