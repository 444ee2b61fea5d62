"""How gradients become one on their way between ranks, where that is not their plain mean."""
