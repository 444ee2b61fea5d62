"""Keras models cut into stages, on devices or ranks, in microbatches by a schedule."""
