"""`dream verify`: run a user's own script under `single` and under strategies, and compare."""
