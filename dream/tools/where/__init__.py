"""`dream where`: what a running job is doing."""
