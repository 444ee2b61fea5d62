"""Ranks that wait for others: who is waited for, what it does, and how long that may go on.

One policy for every reduction. A rank that has waited for a minute, or for half the stall time
where that is shorter, says for whom, and where that rank is; after DREAM_STALL_SECONDS the wait is
an error that names it. A rank that is dead is told at once, by the transports themselves.

patience   how long a wait has lasted, less what this process was itself stopped
marks      what a rank tells of itself as it goes: training steps, waits, files that wait inside
posture    where this rank is, seen from a thread of its own
notice     that, laid open in memory for the other ranks of the host
stacks     a rank's Python stack, asked for by a signal
others     where the other ranks are: from memory, /proc and the job's store
verdict    who waits for whom. Pure
telling    it in words
watcher    the thread that looks, says and ends
"""

from dream.stall.marks import Waiting, stepped, waiting, waits_inside
from dream.stall.patience import Patience
from dream.stall.telling import absence
from dream.stall.watcher import give_up, overdue, watch

__all__ = [
    "Patience",
    "Waiting",
    "absence",
    "give_up",
    "overdue",
    "stepped",
    "waiting",
    "waits_inside",
    "watch",
]
