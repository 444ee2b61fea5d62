"""Stages of layers along the ranks, microbatches through them."""
