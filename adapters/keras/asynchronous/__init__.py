"""Keras under strategies whose replicas do not share each step, whatever the backend."""
