"""Hold the formulas of `dream plan` against tables that others have published."""
