"""Train one task over frameworks x strategies and hold every cell against `single`.

cells       what a row is; grid: which rows there are
available   what is not installed here
runner      one cell: a job of its own, started as a user would start it
worker      what runs in the rank
record      what a rank leaves behind
laws        within 1e-6 of `single`, ranks bit-identical; judge: applied to every row
table       for people; document: for programs
"""
