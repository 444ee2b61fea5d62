"""`dream profile`: where a step's time goes, on every rank."""
