"""The engines themselves, each started once for a module's tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import netns
import pytest
import slurm as slurms
import sshd
from netns import Started
from sshd import Hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Network namespaces, reached by OpenSSH's own servers."""
    if reason := sshd.why_not():
        pytest.skip(reason)
    with ExitStack() as held:
        *trained, typed = held.enter_context(netns.hosts(3))
        option = held.enter_context(sshd.servers(tmp_path_factory.mktemp("ssh"), trained))
        yield Hosts(trained, typed, option)


@pytest.fixture
def started() -> Iterator[Started]:
    with Started() as processes:
        yield processes


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Slurm's daemons, two nodes: what srun's environment needs."""
    if reason := slurms.why_not():
        pytest.skip(reason)
    with slurms.cluster(tmp_path_factory.mktemp("slurm")) as environ:
        yield environ


@pytest.fixture(scope="module")
def raylets() -> Iterator[str]:
    """The address of a Ray cluster of two raylets."""
    cluster_utils = pytest.importorskip(
        "ray.cluster_utils", reason="ray is not installed: pip install 'dream-systems[ray]'"
    )
    head = {"num_cpus": 2, "include_dashboard": False}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    yield cluster.address
    cluster.shutdown()
