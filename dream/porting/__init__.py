"""Two models of two frameworks held side by side: the same layers, the same numbers?

steps        from a layout to the canonical one and back, as plain data; arrays: on NumPy
description  what a model is made of: layers, parameters, roles
convert      a layer's values between the layouts
match        which layer of one model is which of the other

The canonical layout is Keras's channels-last one (kernels of (..., in, out)), save that a Dense
behind a flattened map, and what follows it in that order, counts channels first, as torch does.
"""
