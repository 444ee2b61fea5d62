"""Keras models on a DTensor mesh: variables, gradients and optimizer states in parts."""
