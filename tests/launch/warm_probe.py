"""Write down what a rank can see of its interpreter, before and after some lines are run.

warm_probe.py LINES FILE
"""
# ruff: noqa: PTH109, PTH110, PTH115, PTH123, PTH208

# imported here only: what this file imports is in sight before
import json
import os
import sys


def state():
    import faulthandler
    import gc
    import locale
    import logging
    import multiprocessing
    import signal
    import socket
    import threading
    import warnings

    with open("/proc/self/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    with open("/proc/self/cmdline") as file:
        command = file.read().replace("\0", " ").strip()
    with open("/proc/self/limits") as file:
        limits = file.read()
    hooks = (sys.excepthook, threading.excepthook, sys.displayhook, sys.unraisablehook)
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return {
        "environ": dict(os.environ),
        "filters": [repr(each) for each in warnings.filters],
        "logging": [repr(logging.root.handlers), logging.root.level, logging.getLoggerClass()],
        "signals": {each: repr(signal.getsignal(each)) for each in signal.valid_signals()},
        "masked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "hooks": [each.__qualname__ for each in hooks],
        "traced": [sys.gettrace(), sys.getprofile(), faulthandler.is_enabled()],
        "interpreter": [sys.executable, sys.orig_argv, sys.argv, sys.path, list(sys.flags)],
        "limits": [limits, sys.getrecursionlimit(), gc.get_threshold(), sys.getswitchinterval()],
        "defaults": [locale.setlocale(locale.LC_ALL), socket.getdefaulttimeout()],
        "main": sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__")),
        "streams": [[repr(each), each.line_buffering, each.write_through] for each in streams],
        "place": [os.getcwd(), os.getsid(0) == os.getpid() == os.getpgid(0)],
        "threads": [len(os.listdir("/proc/self/task")), threading.active_count()],
        "files": sorted(os.readlink(f"/proc/self/fd/{each}").split(":")[0] for each in range(8)
                        if os.path.exists(f"/proc/self/fd/{each}")),
        "status": [status[n] for n in ("SigBlk", "SigIgn", "SigCgt", "Umask", "NoNewPrivs")],
        "command": command,
        "processes": [multiprocessing.get_start_method(allow_none=True),
                      multiprocessing.current_process().name],
        "foreign": sorted({name.partition(".")[0] for name in sys.modules}
                          - sys.stdlib_module_names
                          - {"__dream_child__", "__fork_server__", "__mp_main__"}),
    }  # fmt: skip


before = state()
exec(sys.argv[1])
if os.environ["RANK"] == "0":
    with open(sys.argv[2], "w") as file:
        json.dump([before, state()], file, default=repr)
