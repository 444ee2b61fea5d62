"""What a model is given, as global batches, and where fit stands in them."""
