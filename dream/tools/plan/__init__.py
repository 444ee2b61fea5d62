"""What a model will need, before anything is rented: `dream plan`.

asked        what is asked for, checked
sketch       what an adapter tells of a model that has no values: worker does it in a process
hardware     what devices and links can do; presets: of known machines, with sources
candidates   the strategies that N devices can run
memory       bytes on each device; traffic: what they send; cost: what sending takes
timing       seconds of a step
rehearsed    the same three of what an adapter rehearsed by a strategy's own code
forecast     all of these for one candidate; choice: which to take, in a sentence
scaling      the same for thousands of devices, simulated
calibrate    this machine as hardware; rates: what runs in its ranks; overheads: what each
             strategy's own code costs on it
measure      real runs beside the forecasts; rank: what runs in theirs
report       for people; document: for programs
"""
