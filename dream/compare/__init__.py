"""Train one task over frameworks x strategies and hold every cell against `single`.

cells       which rows there are
available   what is not installed here
runner      one cell: a job of its own, started as a user would start it
worker      what runs in the rank
record      what a rank leaves behind
judge       the law: within 1e-6 of `single`, ranks bit-identical
table       for people; document: for programs
"""
