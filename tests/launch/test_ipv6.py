"""Hosts that have IPv6 alone, for themselves too."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import netns
import pytest
from launch_scripts import alone
from netns import DREAM, Host, Started

SCRIPT = Path(__file__).with_name("ipv6_script.py")
ENV = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with netns.hosts(2, ipv6=True) as made:
        yield made


def weights(said: str) -> list[float]:
    (line,) = [line for line in said.splitlines() if line.startswith("weights ")]
    return [float(word) for word in line.split()[1:]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("torch", "gloo"), pytest.param(("tensorflow", "grpc"), marks=pytest.mark.exhaustive)],
)
def test_ranks_on_two_hosts_and_on_one_train_what_one_device_does(
    hosts: list[Host], words: tuple[str, str]
) -> None:
    """The first host is given by its address; their names stand for nothing."""
    first, _ = hosts
    env = ENV | {"DREAM_TOKEN": secrets.token_hex(16)}
    with Started() as started:
        for number, host in enumerate(hosts):
            started.on(
                host, *DREAM, "run", "-n", "1", "--nnodes", "2", "--node-rank", str(number),
                "--master-addr", first.address, str(SCRIPT), *words, env=env,
            )  # fmt: skip
        started.on(first, *DREAM, "run", "-n", "2", str(SCRIPT), *words, env=env)
        said = netns.ends(started.processes, time.monotonic(), 500.0)
    assert [one.code for one in said] == [0] * 3, "\n".join(one.err for one in said)
    assert said[1].out == ""
    plain = alone([str(SCRIPT), *words], f"{words[0]}{',keras' * (words[0] != 'torch')}", ENV)
    for one in (said[0], said[2]):
        assert weights(one.out) == pytest.approx(weights(plain.stdout), abs=1e-6)
