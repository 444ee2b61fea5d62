"""What many hosts cost node 0's launcher, which hears of each of them once a beat.

    python benchmarks/heartbeats.py [--hosts 256] [--seconds 30]

The store and the hub are real and have a process to themselves; so are the connections and the
launchers' side of them, of which a few processes hold all. Prints the share of a core that the
hub's process takes while all is well, the messages that it hears a second, and how long it takes
until every host has heard of a rank's failure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time

from dream._topology import Endpoint
from dream.cluster import Rendezvous
from dream.cluster.store import Store
from dream.launch.ending import Ending
from dream.launch.hosts.hub import Hub
from dream.launch.hosts.link import FAULT, HostLink
from dream.launch.hosts.meeting import Meeting, Node

HOST, TOKEN = "127.0.0.1", "a-token-of-the-benchmark"
START_SECONDS = 120.0
PER_PROCESS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="What many hosts cost node 0's launcher.")
    parser.add_argument("--hosts", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--launchers", nargs=3, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.launchers:
        launchers(given.hosts, *given.launchers)
    else:
        print(measured(given.hosts, given.seconds))


def measured(hosts: int, seconds: float) -> str:
    store = Store(HOST, 0, TOKEN)
    store.standing = hub = Hub(Meeting(hosts, START_SECONDS), f"{HOST}:{store.port}", START_SECONDS)
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--hosts", str(hosts), "--launchers",
             str(store.port), str(first), str(min(PER_PROCESS, hosts - first))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for first in range(0, hosts, PER_PROCESS)
    ]  # fmt: skip
    began = time.monotonic()
    try:
        heard(processes, "agreed")
        met = time.monotonic() - began
        time.sleep(5.0)  # until all are past their start
        cpu, count, start = time.process_time(), hub.messages, time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - start
        share = (time.process_time() - cpu) / took
        rate = (hub.messages - count) / took
        failed = time.monotonic()
        say(processes[:1], "fail")
        heard(processes, "told")
        told = time.monotonic() - failed
        for process in processes:
            process.communicate(timeout=100)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        hub.close()
        store.close()
    return (
        f"{hosts} hosts, met in {met:.1f} s: {rate:.0f} messages a second, {100 * share:.1f} % of "
        f"a core; every host heard of a failure after {told:.1f} s"
    )


def say(processes: list[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()


def heard(processes: list[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{word}\n"


def launchers(hosts: int, port: int, first: int, count: int) -> None:
    """The launchers' side of some hosts."""
    told = threading.Semaphore(0)

    def event(kind: str) -> None:
        if kind == FAULT:
            told.release()

    links = [link(hosts, port, number) for number in range(first, first + count)]
    for one in links:
        one.agree()
        one.listen(event)
    print("agreed", flush=True)
    if first == 0:
        sys.stdin.readline()
        links[0].tell("", [Ending(0, 1, time.time(), text="ValueError: mine")])
    for _ in links:
        told.acquire()
    print("told", flush=True)
    for one in links:
        one.close()


def link(hosts: int, port: int, number: int) -> HostLink:
    store = Rendezvous(Endpoint(HOST, port), TOKEN)
    ports = tuple(range(40000, 40009))  # of a host with eight ranks
    node = Node(number, hosts, 8, f"host{number}", str(number), ports, {"dream": "1"}, 15.0)
    return HostLink(node, store.stay, str(store.endpoint), lambda: None)


if __name__ == "__main__":
    main()
