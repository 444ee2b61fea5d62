"""`parameter_server` with engine="tensorflow": TensorFlow's own servers and its coordinator."""
