"""TensorFlow: what must precede its first op, its collectives, and the explicit step."""
