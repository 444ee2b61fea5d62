"""`parameter_server` and `local_sgd` in PyTorch."""
