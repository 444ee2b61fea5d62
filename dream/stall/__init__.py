"""Ranks that wait for others: who is waited for, what it does, and how long that may go on.

One policy for every reduction. A rank that has waited for a minute, or for half the stall time
where that is shorter, says for whom, and where that rank is; after DREAM_STALL_SECONDS the wait is
an error that names it. A rank that is dead is told at once, by the transports themselves.

activity   what this rank does: steps, waits, and where it is, seen from a thread of its own
phases     what part of training a Python stack is in
stacks     a rank's Python stack, asked for by a signal
notice     memory in which a process says what it is
page       the memory that a rank lays open, for the others and for `dream where`
peers      where the other ranks are: from their pages, /proc and the job's store
status     where each rank stands, who waits for whom, and that in words. Pure
stragglers whom the others wait for, over a whole job
watcher    the thread that looks, says and ends
"""

from dream.cluster.awake import Patience
from dream.stall.activity import Waiting, called_from, resumed, stepped, waiting, waits_inside
from dream.stall.phases import phases_inside
from dream.stall.status import absence
from dream.stall.watcher import give_up, gone, overdue, watch

__all__ = [
    "Patience",
    "Waiting",
    "absence",
    "called_from",
    "give_up",
    "gone",
    "overdue",
    "phases_inside",
    "resumed",
    "stepped",
    "waiting",
    "waits_inside",
    "watch",
]
