"""Keras on TensorFlow: what its backend brings to adapters/keras."""
