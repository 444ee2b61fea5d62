"""Import torch, say so, and stay until a file is there."""

import sys
import time
from pathlib import Path

import torch

print("first line of", torch.__name__, flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
