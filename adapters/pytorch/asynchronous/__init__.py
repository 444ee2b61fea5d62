"""`parameter_server` in PyTorch: what the neutral core needs of a framework."""
