"""Keras on torch: what its backend brings to adapters/keras."""
