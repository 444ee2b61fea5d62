"""Serves a store until its input ends, and answers on each line of input with what it costs:
threads, open files, and the most memory so far in MB.

Usage: strangers.py TOKEN
"""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path

from dream.cluster.store import Store

store = Store("127.0.0.1", 0, sys.argv[1])
print(store.port, flush=True)
for _ in sys.stdin:
    status = Path("/proc/self/status").read_text()  # getrusage's is of who started this, too
    (kilobytes,) = re.findall(r"VmHWM:\s*(\d+) kB", status)
    most = int(kilobytes) // 1024
    print(threading.active_count(), len(os.listdir("/proc/self/fd")), most, flush=True)  # noqa: PTH208
