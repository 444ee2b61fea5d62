"""Keras: one fit, evaluate and predict over the engine that a backend brings."""
