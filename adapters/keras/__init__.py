"""Keras: fit, evaluate and predict on dealt data, whatever the backend."""
