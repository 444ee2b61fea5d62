"""Two models of two frameworks held side by side: the same layers, the same numbers?

steps        from a layout to the canonical one and back, as plain data; arrays: on NumPy
description  what a model is made of: layers, parameters, roles
convert      a layer's values between the layouts
match        which layer of one model is which of the other

probe        what an adapter tells of a model; placing: which way round its inputs are given
building     from `file.py:function` to a model; worker: the process that does it
process      that process from the side that asks
check        the whole check, under command and function; files: what the command line names
shake        no parameter stays all one number; loss: what is differentiated
judge        layer by layer, into a verdict; gap: how far is too far; settings: hyper-parameters
reasons      why; activations and recognition: told by the numbers
report       for people; document: for programs

The canonical layout is Keras's channels-last one (kernels of (..., in, out)), save that a Dense
behind a flattened map, and what follows it in that order, counts channels first, as torch does.
"""
