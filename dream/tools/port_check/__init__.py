"""`dream port-check`: compare a model with its port, layer by layer, in values and gradients."""
