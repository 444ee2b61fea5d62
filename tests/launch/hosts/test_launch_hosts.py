"""Several hosts, one of which is lost, late or cut off: each a network namespace of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import netns
import pytest
from launch_scripts import free_port, wait_for, write
from netns import DREAM, Host, Said, Started

from dream.launch import start

PEERS = """
import socket

def peer():
    if rank == 0:
        with socket.create_server(('', 7777)) as server:
            return [server.accept()[0] for _ in range(int(os.environ['WORLD_SIZE']) - 1)]
    while True:
        try:
            return [socket.create_connection((os.environ['MASTER_ADDR'], 7777), 1.0)]
        except OSError:
            time.sleep(0.05)

peers = peer()
mark(f'joined{rank}')
for one in peers: one.settimeout(600)
import select
poll = select.poll()
for one in peers: poll.register(one, select.POLLIN)
while not os.path.exists(f'{sys.argv[0]}.enough'):
    if poll.poll(50): raise ConnectionResetError('the peer is gone')
"""
"""Ranks that fail at once where the connection to a peer closes, until the test has had enough."""

ALONE = (
    "mark(f'joined{rank}')\nwhile not os.path.exists(f'{sys.argv[0]}.enough'): time.sleep(0.05)\n"
)
TOKEN = {"DREAM_TOKEN": "common-token"}
TWO = ("--nnodes", "2", "-n", "1")
THREE = ("--nnodes", "3", "-n", "1")
OTHER_TORCH = "with another torch"

Processes = list[subprocess.Popen[str]]


@pytest.fixture(scope="module")
def three() -> Iterator[list[Host]]:
    with netns.hosts(3) as made:
        yield made


@pytest.fixture
def started() -> Iterator[Started]:
    """What is started by it is gone after the test, however that ends."""
    with Started() as processes:
        yield processes


def launch(started: Started, hosts: Sequence[Host], script: str, *options: str) -> Processes:
    return [one(started, hosts, node, script, *options) for node in range(len(hosts))]


def one(
    started: Started, hosts: Sequence[Host], node: int, script: str, *options: str,
    master: str = "", env: Mapping[str, str] | None = None, hosts_file: Path | None = None,
) -> subprocess.Popen[str]:  # fmt: skip
    command = (
        *DREAM, "run", "-n", "1", "--nnodes", str(len(hosts)), "--node-rank", str(node),
        "--master-addr", master or hosts[0].address, *options, script,
    )  # fmt: skip
    return started.on(hosts[node], *command, env={**TOKEN, **(env or {})}, hosts_file=hosts_file)


def here(
    started: Started, script: str, port: int, *options: str, env: Mapping[str, str] = TOKEN
) -> subprocess.Popen[str]:
    """A launcher on this machine itself."""
    return started.here(*DREAM, "run", "--master-port", str(port), *options, script, env=env)


def joined(script: str, count: int) -> None:
    wait_for([Path(f"{script}.joined{rank}") for rank in range(count)])


def names(said: Said, what: str) -> None:
    assert said.code == 1, said
    assert said.message.startswith(f"dream run: Ended because {what}"), said.err
    assert "Traceback" not in said.message


@pytest.mark.parametrize(
    ("lost", "body"),
    [
        (1, PEERS),
        pytest.param(0, PEERS, marks=pytest.mark.exhaustive),
        pytest.param(1, ALONE, marks=pytest.mark.exhaustive),
        pytest.param(0, ALONE, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("whole_host", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_killed_launcher_is_named_by_every_other_host(
    three: list[Host], started: Started, tmp_path: Path, lost: int, body: str, whole_host: bool
) -> None:
    """Its ranks go with it, and the ranks of the others fail of that: none of them is named."""
    script = write(tmp_path, body)
    launchers = launch(started, three, script)
    joined(script, 3)
    since = time.monotonic()
    if whole_host:
        three[lost].kill()
    else:
        launchers[lost].kill()
    said = netns.ends(launchers, since)
    assert said[lost].code == -9
    for node in {0, 1, 2} - {lost}:
        names(said[node], f"node {lost} (host{lost}) is gone: its launcher was killed")
        assert said[node].seconds < 60.0


def test_a_killed_rank_is_named_by_every_host(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    """And not the ranks of other hosts that fail of it first, nor their hosts."""
    script = write(tmp_path, PEERS)
    launchers = launch(started, three, script)
    joined(script, 3)
    os.kill(int(Path(f"{script}.joined1").read_text()), signal.SIGKILL)
    for said in netns.ends(launchers, time.monotonic()):
        assert said.code == 137
        assert said.message.startswith("dream run: Rank 1 was killed by SIGKILL"), said.err


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_who_trains_by_gloo_names_the_killed_launcher(
    three: list[Host], started: Started, tmp_path: Path, lost: int
) -> None:
    body = """
import dream, torch
c = dream.communicator('gloo', framework='torch')
while True:
    c.all_reduce(torch.ones(1000))
    mark(f'joined{rank}')
"""
    script = write(tmp_path, body)
    launchers = launch(started, three[:2], script)
    joined(script, 2)
    launchers[lost].kill()
    said = netns.ends(launchers, time.monotonic())[1 - lost]
    names(said, f"node {lost} (host{lost}) is gone: its launcher was killed")


@pytest.mark.slow
def test_a_stopped_launcher_is_named_by_every_host(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    """By itself too, once it runs again."""
    script = write(tmp_path, ALONE)
    launchers = launch(started, three, script, "--node-timeout", "5")
    joined(script, 3)
    launchers[1].send_signal(signal.SIGSTOP)
    since = time.monotonic()
    others = netns.ends([launchers[0], launchers[2]], since)
    launchers[1].send_signal(signal.SIGCONT)
    for said in (*others, *netns.ends(launchers[1:2], since)):
        names(said, "node 1 (host1) cannot be reached: its launcher has said nothing for")


@pytest.mark.exhaustive
def test_a_stopped_first_launcher_is_named_by_every_host(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    script = write(tmp_path, ALONE)
    launchers = launch(started, three, script, "--node-timeout", "5")
    joined(script, 3)
    launchers[0].send_signal(signal.SIGSTOP)
    since = time.monotonic()
    others = netns.ends(launchers[1:], since)
    launchers[0].send_signal(signal.SIGCONT)
    for said in (*others, *netns.ends(launchers[:1], since)):
        names(said, "node 0 (host0) cannot be reached: its launcher has said nothing for")


@pytest.mark.slow
def test_who_lost_its_peer_to_a_silent_host_names_the_host(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    """Within seconds, whatever the node timeout: a rank has failed of it."""
    body = ALONE + "if rank == 0: raise ConnectionResetError('the peer is gone')\ntime.sleep(600)"
    script = write(tmp_path, body)
    launchers = launch(started, three[:2], script)
    joined(script, 2)
    launchers[1].send_signal(signal.SIGSTOP)
    since = time.monotonic()
    Path(f"{script}.enough").touch()
    said = netns.ends(launchers[:1], since)[0]
    launchers[1].send_signal(signal.SIGCONT)
    names(said, "node 1 (host1) cannot be reached: its launcher has said nothing for")
    silence = re.search(r"nothing for (\d+) s", said.message)
    assert silence is not None
    assert int(silence[1]) < 15, "as long as silence alone would have taken"
    names(netns.ends(launchers[1:], since)[0], "node 1 (host1) cannot be reached")


@pytest.mark.parametrize("cut", [Host.cable, pytest.param(Host.link, marks=pytest.mark.exhaustive)])
def test_a_cut_link_is_named_on_both_sides(
    three: list[Host], started: Started, tmp_path: Path, cut: Callable[[Host, str], None]
) -> None:
    script = write(tmp_path, PEERS)
    launchers = launch(started, three, script, "--node-timeout", "5")
    joined(script, 3)
    cut(three[2], "down")
    try:
        said = netns.ends(launchers, time.monotonic())
    finally:
        cut(three[2], "up")
    for node, other in ((0, 2), (1, 2), (2, 0)):
        names(said[node], f"node {other} (host{other}) cannot be reached")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [Host.link, pytest.param(Host.cable, marks=pytest.mark.exhaustive)])
def test_a_blip_is_survived(
    three: list[Host], started: Started, tmp_path: Path, cut: Callable[[Host, str], None]
) -> None:
    script = write(tmp_path, ALONE)
    launchers = launch(started, three[:2], script)
    joined(script, 2)
    cut(three[1], "down")
    time.sleep(2.5)
    cut(three[1], "up")
    time.sleep(1.0)
    assert [launcher.poll() for launcher in launchers] == [None, None]
    Path(f"{script}.enough").touch()
    said = netns.ends(launchers, time.monotonic())
    assert [one.code for one in said] == [0, 0], said


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_blip_shorter_than_the_node_timeout_is_survived(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    script = write(tmp_path, ALONE)
    launchers = launch(started, three[:2], script)
    joined(script, 2)
    three[1].cable("down")
    time.sleep(12.0)
    three[1].cable("up")
    time.sleep(10.0)
    assert [launcher.poll() for launcher in launchers] == [None, None]
    Path(f"{script}.enough").touch()
    assert [one.code for one in netns.ends(launchers, time.monotonic())] == [0, 0]


@pytest.mark.slow
def test_a_host_that_is_not_up_yet_is_waited_for(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    """First its name is not known, then there is no route to it, then nothing listens there."""
    script, known = write(tmp_path, "print('well', rank)\n"), tmp_path / "hosts"
    known.write_text("127.0.0.1 localhost\n")
    names_ = {"master": "first.test", "hosts_file": known}
    three[1].link("down")
    try:
        early = one(started, three[:2], 1, script, **names_)
        assert still_runs(early, 1.0)
        known.write_text(f"127.0.0.1 localhost\n{three[0].address} first.test\n")
        assert still_runs(early, 0.5)
    finally:
        three[1].link("up")
    assert still_runs(early, 0.5)
    late = one(started, three[:2], 0, script, **names_)
    said = netns.ends([late, early], time.monotonic())
    assert [(each.code, each.out) for each in said] == [(0, "well 0\n"), (0, "")], said


def still_runs(process: subprocess.Popen[str], seconds: float) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and process.poll() is None:
        time.sleep(0.02)
    return process.poll() is None


AGAIN = "--max-restarts", "2"
WELL_AGAIN = (
    "first = not os.path.exists(f'{sys.argv[0]}.joined{rank}')\n"
    + PEERS.replace("poll.poll(50)", "not first: break\n    if poll.poll(50)")
    + "print('well', rank)\n"
)
"""Those of before, which come to their end once they are started again."""


@pytest.mark.slow
def test_a_job_of_several_hosts_starts_again(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    script = write(tmp_path, WELL_AGAIN)
    launchers = launch(started, three, script, *AGAIN)
    joined(script, 3)
    os.kill(int(Path(f"{script}.joined1").read_text()), signal.SIGKILL)
    for node, said in enumerate(netns.ends(launchers, time.monotonic())):
        assert said.code == 0, said.err
        assert said.out == ("well 0\n" if node == 0 else "")
        assert "Rank 1 was killed by SIGKILL" in said.err
        assert "Starting again, 1 of 2" in said.err


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_a_host_that_comes_back_is_waited_for(
    three: list[Host], started: Started, tmp_path: Path, lost: int
) -> None:
    script = write(tmp_path, WELL_AGAIN)
    launchers = launch(started, three, script, *AGAIN)
    joined(script, 3)
    launchers[lost].kill()
    launchers[lost].wait()
    launchers[lost] = one(started, three, lost, script, *AGAIN)
    said = netns.ends(launchers, time.monotonic())
    assert [each.code for each in said] == [0, 0, 0], said
    assert said[0].out == "well 0\n"
    for node in {0, 1, 2} - {lost}:
        assert "Starting again, 1 of 2" in said[node].err
        if lost:  # a node 0 that comes back at once may have been heard by then
            assert f"Ended because node {lost} (host{lost}) is gone" in said[node].err


def test_a_host_that_never_comes(three: list[Host], started: Started, tmp_path: Path) -> None:
    env = {"DREAM_STARTUP_SECONDS": "2"}
    launchers = [one(started, three, node, write(tmp_path, ALONE), env=env) for node in (0, 1)]
    for said in netns.ends(launchers, time.monotonic()):
        assert said.code == 1
        assert "Of 3 hosts, the launchers of these nodes did not come within 2 s: 2." in said.err


def test_a_name_that_is_loopback_on_host_0(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    known = tmp_path / "hosts"
    known.write_text("127.0.0.1 localhost\n127.0.1.1 first.test\n")
    launcher = one(started, three, 0, write(tmp_path, ALONE), master="first.test", hosts_file=known)
    said = netns.ends([launcher], time.monotonic(), 60.0)[0]
    assert said.code == 2
    assert "Received: first.test, which this host resolves to 127.0.1.1" in said.err
    assert "as --master-addr on every host" in said.err


@pytest.mark.exhaustive
def test_a_stopped_host_tells_which_it_was_and_all_ranks_save(
    three: list[Host], started: Started, tmp_path: Path
) -> None:
    """Saving takes longer than ranks have after a failure."""
    saves = f"""
def save(*_):
    time.sleep({2 * start._TERM_SECONDS})
    mark(f'saved{{rank}}')
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
"""
    script = write(tmp_path, saves + ALONE)
    launchers = launch(started, three, script, "--grace", "300")
    joined(script, 3)
    launchers[1].terminate()
    said = netns.ends(launchers, time.monotonic())
    assert said[1].code == 143
    for node in (0, 2):
        names(said[node], "node 1 (host1) was stopped by SIGTERM")
    assert all(Path(f"{script}.saved{rank}").exists() for rank in range(3))


@pytest.mark.parametrize(
    ("number", "second", "words"),
    [
        pytest.param("1", THREE, "--node-rank 1 on hosts", id="twice the same number"),
        pytest.param("2", ("--nnodes", "4", "-n", "1"), "--nnodes 3 on node 0", id="nnodes"),
        pytest.param("2", ("--nnodes", "3", "-n", "2"), "-n 1 on node 0", id="n"),
        pytest.param("2", (*THREE, OTHER_TORCH), "torch 9.9 on node 2", id="versions"),
    ],
)
def test_hosts_that_cannot_go_together_hear_so_at_once(
    tmp_path: Path, started: Started, number: str, second: Sequence[str], words: str
) -> None:
    """Each of them, long before the start-up time, which the tests set to minutes."""
    script, port = write(tmp_path, ALONE), free_port()
    for node, options in (("0", THREE), ("1", THREE), (number, second)):
        given = [option for option in options if option != OTHER_TORCH]
        env = TOKEN | ({"PYTHONPATH": other_torch(tmp_path)} if OTHER_TORCH in options else {})
        here(started, script, port, *given, "--node-rank", node, env=env)
    for said in netns.ends(started.processes, time.monotonic(), 100.0):
        assert said.code == 2, said
        assert words in said.err
        assert "Traceback" not in said.err


def other_torch(folder: Path) -> str:
    """Where torch seems to be installed in another version."""
    facts = folder / "packages" / "torch-9.9.dist-info" / "METADATA"
    facts.parent.mkdir(parents=True)
    facts.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    return str(folder / "packages")


def test_who_comes_to_a_job_that_has_begun_is_refused_alone(
    started: Started, tmp_path: Path
) -> None:
    script, port = write(tmp_path, ALONE), free_port()
    running = [here(started, script, port, *TWO, "--node-rank", node) for node in "01"]
    joined(script, 2)
    late = here(started, script, port, *TWO, "--node-rank", "1")
    said = netns.ends([late], time.monotonic(), 100.0)[0]
    assert said.code == 2
    assert "The job has begun already" in said.err
    Path(f"{script}.enough").touch()
    assert [one.code for one in netns.ends(running, time.monotonic())] == [0, 0]


def test_a_host_with_another_token_ends_nobody(started: Started, tmp_path: Path) -> None:
    script, port = write(tmp_path, ALONE), free_port()
    first = here(started, script, port, *TWO)
    other = {"DREAM_TOKEN": "another-token"}
    stranger = here(started, script, port, *TWO, "--node-rank", "1", env=other)
    said = netns.ends([stranger], time.monotonic(), 100.0)[0]
    assert said.code == 2
    assert "refused the token" in said.err
    second = here(started, script, port, *TWO, "--node-rank", "1")
    joined(script, 2)
    Path(f"{script}.enough").touch()
    both = netns.ends([first, second], time.monotonic())
    assert [one.code for one in both] == [0, 0]
    assert "A host came without this job's DREAM_TOKEN, and was refused: 127.0.0.1" in both[0].err
