"""Rank 1 is killed; rank 0 prints what it is told, and after how long. FRAMEWORK REDUCTION."""

import os
import signal
import sys
import time

import numpy as np

import dream

c = dream.communicator(sys.argv[2], framework=sys.argv[1])
c.barrier()
if c.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
begin = time.monotonic()
try:
    c.all_reduce(np.ones(2, np.float32), "sum")
except dream.DreamError as error:
    print(f"{type(error).__name__}: {error} after {time.monotonic() - begin:.2f} s", flush=True)
os._exit(0)
