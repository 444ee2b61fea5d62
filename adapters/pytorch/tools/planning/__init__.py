"""PyTorch's part of `dream plan`: steps without values, rehearsals, trials, and rates."""
