"""`dream checkpoint`: what a folder of checkpoints holds, whether it is whole, and conversions."""
