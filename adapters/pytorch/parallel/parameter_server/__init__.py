"""`parameter_server` in PyTorch: the workers' optimizer steps on the servers."""
