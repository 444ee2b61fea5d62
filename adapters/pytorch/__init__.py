"""PyTorch: what the block does to modules, loaders and optimizers, and its collectives."""
