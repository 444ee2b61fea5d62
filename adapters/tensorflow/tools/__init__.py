"""Everything that compare, verify, plan and port-check ask of the framework."""
