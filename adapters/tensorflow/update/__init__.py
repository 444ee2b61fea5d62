"""How an update is made, where that is not the plain mean of gradients."""
