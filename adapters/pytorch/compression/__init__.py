"""Gradients that become one on their way between ranks, by more than their plain mean."""
