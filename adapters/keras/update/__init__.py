"""How an update is made: micro-batches, clipping, precision, what is kept for backward."""
