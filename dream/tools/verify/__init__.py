"""Run a user's own script under `single` and under strategies, and hold them against each other.

arguments   the command line
cells       which strategies there are to hold
runs        a script under one of them, as `dream run` starts it, with its ranks recorded
tolerance   how far apart is equal
judge       equal or not, from which step on, in which parameter
noise       how far single is from itself
causes      what a difference comes of: by_figures, by_runs
report      for people; document: for programs
"""
