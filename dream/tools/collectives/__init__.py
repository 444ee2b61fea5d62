"""What the communicator's collectives take on this machine: `dream collectives`.

cost        what NCCL's tests and the textbooks say that a collective moves
sizes       "200KB" and back
settings    what is measured
transports  which there are here
runner      one framework's job, started as a user would start it
worker      what runs in the rank; calls and blocks: what it times, and how
figures     times into medians and bandwidths
report      for people; document: for programs; plot: a picture
"""
