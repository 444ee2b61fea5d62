"""A model's data as global batches, and where fit stands in them."""
