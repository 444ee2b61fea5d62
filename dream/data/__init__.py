"""Which samples are whose, and where training stands in them: index arithmetic, no framework."""
