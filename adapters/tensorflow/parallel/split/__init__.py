"""Strategies that split a Keras model on TensorFlow: shards, tensors, stages, layers."""
