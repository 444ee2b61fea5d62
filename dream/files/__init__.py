"""Files of a job: whole or not at all, rank 0's alone where several ranks save them, read when they
are there."""
