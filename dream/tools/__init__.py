"""On top of the core, which imports none of it: compare, verify, plan, port-check, timings, env."""
