"""Layers cut over the model axis, by DTensor."""
