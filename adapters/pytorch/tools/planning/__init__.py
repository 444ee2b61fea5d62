"""PyTorch's part of `dream plan`.

sketching     a step of the whole model without values, noted in a ledger; peaks: read off it
rehearsing    a step of a split model by its strategy's own code, in a make_believe world
trial         a real step, watched; reference: a small model to train so in a calibration
rates         what this machine computes and moves; replaying: what operations take by themselves,
              by their calls
"""
