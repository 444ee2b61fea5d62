"""`dream run --on ENGINE` and `--hosts`: the same command line, started by somebody else.

An engine is a file: it is given a `Request`, and writes, submits or starts. What it needs beyond
Python is a program or a package of its own, looked for on use.
"""
