"""A rank's place, read off each launcher's variables."""

from __future__ import annotations

import json
import os

import pytest

from dream import ConfigurationError, Unsupported
from dream._topology import Cluster, Endpoint
from dream.cluster import detect, export_horovod, variables
from dream.strategies import choice

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "DREAM_TOKEN": "a-secret-of-several-hosts",
}
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "4000",
}


SEVERAL = {"DREAM_TOKEN": "a-secret-of-several-hosts"}


def tf_config(workers: object, index: object = 0, kind: str = "worker") -> dict[str, str]:
    task = {"type": kind, "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}), **SEVERAL}


def test_nothing_set_is_alone() -> None:
    assert detect({}) == Cluster()
    assert detect({"MASTER_ADDR": "10.0.0.1", "TF_CONFIG": "{}"}) == Cluster()


def test_torchrun() -> None:
    place = detect(TORCHRUN)
    assert (place.rank, place.local_rank, place.node_rank) == (3, 1, 1)
    assert (place.world_size, place.local_world_size, len(place.hosts)) == (4, 2, 2)
    assert place.master == Endpoint("10.0.0.1", 29500)
    assert place.rendezvous == Endpoint("10.0.0.1", 29501)
    assert not place.serves_rendezvous
    assert place.workers == ()


def test_torchruns_rank_0_serves_where_it_is_told() -> None:
    place = detect({**TORCHRUN, "RANK": "0", "GROUP_RANK": "0", "DREAM_RENDEZVOUS_PORT": "3000"})
    assert place.serves_rendezvous
    assert place.rendezvous == Endpoint("10.0.0.1", 3000)


def test_the_last_port_has_no_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAM_PORT_RANGE", "65000-65535")
    place = detect({**TORCHRUN, "MASTER_PORT": "65535"})
    assert place.rendezvous == Endpoint("10.0.0.1", 65534)


def test_a_port_that_the_system_chose_has_its_second_below_those_it_hands_out() -> None:
    """The one beside it may be anybody's by then: torchrun's own connection's, say."""
    places = [detect({**TORCHRUN, "MASTER_PORT": str(chosen)}) for chosen in (46781, 46782)]
    first, second = (place.rendezvous.port for place in places if place.rendezvous)
    assert 10000 < first < 32768
    assert second == first + 1


def test_four_variables_are_enough_on_one_host() -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT")
    place = detect({name: TORCHRUN[name] for name in names} | {"MASTER_ADDR": "localhost"})
    assert (place.local_rank, place.local_world_size, place.node_rank) == (3, 4, 0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"RANK": "4"}, ["rank 4", "world size 4", "torchrun"]),
        ({"RANK": "-1"}, ["RANK='-1'"]),
        ({"RANK": "two"}, ["RANK='two'"]),
        ({"WORLD_SIZE": ""}, ["WORLD_SIZE missing", "RANK='3'"]),
        ({"RANK": ""}, ["RANK missing", "WORLD_SIZE='4'"]),
        ({"WORLD_SIZE": "0"}, ["WORLD_SIZE='0'"]),
        ({"MASTER_PORT": ""}, ["MASTER_PORT missing", "MASTER_ADDR='10.0.0.1'"]),
        ({"MASTER_PORT": "70000"}, ["MASTER_PORT='70000'"]),
        ({"LOCAL_RANK": ""}, ["LOCAL_RANK missing"]),
        ({"LOCAL_RANK": "2"}, ["local rank 2", "local world size 2"]),
        ({"LOCAL_WORLD_SIZE": "3"}, ["WORLD_SIZE=4", "LOCAL_WORLD_SIZE=3"]),
        ({"GROUP_RANK": "2"}, ["node rank 2", "2 hosts"]),
    ],
)
def test_torchruns_variables_that_cannot_be(change: dict[str, str], named: list[str]) -> None:
    with pytest.raises(ConfigurationError) as error:
        detect({**TORCHRUN, **change})
    for words in named:
        assert words in str(error.value)


def test_tf_configs_ports_that_the_system_chose_are_not_counted_on_from() -> None:
    place = detect(tf_config(["a:40000", "a:39999"]))
    ports = [place.master and place.master.port, place.rendezvous and place.rendezvous.port]
    assert all(port and 10000 < port < 32768 for port in ports)
    assert len(set(ports)) == 2


def test_tf_config_tells_everything_else() -> None:
    place = detect(tf_config(["a:2222", "b:2222", "b:2223"], index=2))
    assert (place.rank, place.local_rank, place.node_rank) == (2, 1, 1)
    assert (place.world_size, place.local_world_size, place.hosts) == (3, 2, ("a", "b"))
    assert place.workers == (Endpoint("a", 2222), Endpoint("b", 2222), Endpoint("b", 2223))
    assert place.master == Endpoint("a", 2223)
    assert place.rendezvous == Endpoint("a", 2224)
    assert not place.serves_rendezvous


def test_every_task_derives_the_same_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAM_PORT_RANGE", "65000-65535")
    places = [detect(tf_config(["a:65535", "a:65534"], index=index)) for index in (0, 1)]
    assert {place.master for place in places} == {Endpoint("127.0.0.1", 65533)}
    assert {place.rendezvous for place in places} == {Endpoint("127.0.0.1", 65532)}
    assert [place.serves_rendezvous for place in places] == [True, False]


def test_a_chief_comes_first() -> None:
    text = {
        "cluster": {"worker": ["b:1"], "chief": ["a:1"]},
        "task": {"type": "worker", "index": 0},
    }
    place = detect({"TF_CONFIG": json.dumps(text), **SEVERAL})
    assert place.rank == 1
    assert place.hosts == ("a", "b")


def test_servers_come_last() -> None:
    cluster = {"ps": ["c:1"], "worker": ["b:1", "b:2"], "chief": ["a:1"]}
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0)]
    for rank, (kind, index) in enumerate(tasks):
        text = {"cluster": cluster, "task": {"type": kind, "index": index}}
        place = detect({"TF_CONFIG": json.dumps(text), **SEVERAL})
        assert (place.rank, place.world_size, place.servers) == (rank, 4, 1)


@pytest.mark.parametrize("listed", [True, False])
def test_an_evaluator_stands_beside_the_ranks(listed: bool) -> None:
    """Whether the list of tasks names it or not; a strategy that knows none refuses it."""
    cluster = {"worker": ["b:1"], "chief": ["a:1"], **({"evaluator": ["a:2"]} if listed else {})}
    tasks = [("chief", 0), ("worker", 0), ("evaluator", 0)]
    chief, worker, beside = (
        detect({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": t, "index": i}}),
                **SEVERAL})
        for t, i in tasks
    )  # fmt: skip
    assert (chief.rank, worker.rank, chief.world_size, worker.world_size) == (0, 1, 2, 2)
    assert (beside.alone, beside.evaluator, chief.evaluator) == (True, True, False)
    with pytest.raises(ConfigurationError, match="an evaluator in TF_CONFIG, for 'mirrored'"):
        choice.strategy("mirrored", {}, beside)
    own = choice.strategy("parameter_server", {"engine": "tensorflow"}, beside)
    assert own.given == {"engine": "tensorflow"}


def test_one_worker_is_alone() -> None:
    assert detect(tf_config(["a:1"])).alone


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TF_CONFIG": "{"}, "no JSON"),
        ({"TF_CONFIG": "[]"}, "no JSON object"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, '"task" lacks'),
        (tf_config("a:1"), "no list"),
        (tf_config([]), "no list"),
        (tf_config([1]), "no list"),
        (tf_config(["a:1", "b"]), "no host:port"),
        (tf_config(["a:1", "b:x"]), "no host:port"),
        (tf_config(["a:1", "a:1"]), "twice"),
        (tf_config(["a:1", "b:1"], index=2), "index 2 is not below 2"),
        (tf_config(["a:1", "b:1"], index=-1), "index -1"),
        (tf_config(["a:1", "b:1"], kind="judge"), "'judge'"),
        ({"TF_CONFIG": '{"cluster": {"judge": ["a:1"], "worker": ["b:1"]}}'}, "'judge'"),
    ],
)
def test_malformed_tf_config(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    assert words in str(error.value)
    assert "TF_CONFIG" in str(error.value)


def test_tf_config_and_torchrun_must_agree() -> None:
    workers = [f"a:{port}" for port in range(1, 5)]
    place = detect({**TORCHRUN, **tf_config(workers, index=3)})
    assert len(place.workers) == 4
    with pytest.raises(ConfigurationError, match="RANK=3 of WORLD_SIZE=4, TF_CONFIG worker 0 of 4"):
        detect({**TORCHRUN, **tf_config(workers, index=0)})


def test_horovods_launcher() -> None:
    """Its own store, at 4000, is open to all: dream's is another."""
    place = detect(HOROVOD)
    assert (place.rank, place.world_size, place.local_rank) == (1, 2, 1)
    assert place.rendezvous == Endpoint("127.0.0.1", 4001)
    assert place.master == Endpoint("127.0.0.1", 4002)
    assert not place.serves_rendezvous
    assert detect({**HOROVOD, "HOROVOD_RANK": "0"}).serves_rendezvous


def test_a_job_on_one_host_listens_on_loopback_whatever_its_launcher_says() -> None:
    master = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7000"}
    for environ in ({**HOROVOD, **master}, {**TORCHRUN, **master, "WORLD_SIZE": "2", "RANK": "1"}):
        place = detect({**environ, "GROUP_RANK": ""})
        assert place.master == Endpoint("127.0.0.1", 7000)
        assert place.rendezvous == Endpoint("127.0.0.1", 7001)


def test_horovods_launcher_on_several_hosts() -> None:
    hosts = {**HOROVOD, "HOROVOD_CROSS_SIZE": "2", "HOROVOD_CROSS_RANK": "1"}
    place = detect({**hosts, "MASTER_ADDR": "a", "MASTER_PORT": "7000", **SEVERAL})
    assert place.master == Endpoint("a", 7000)
    assert place.rendezvous == Endpoint("a", 7001)


def test_a_place_that_was_exported_to_horovods_core_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in HOROVOD.items():
        monkeypatch.setenv(name, value)
    for name in ("MASTER_ADDR", "MASTER_PORT", "DREAM_RENDEZVOUS_PORT", "DREAM_TOKEN"):
        monkeypatch.setenv(name, "")
    place = detect()
    with monkeypatch.context() as inner:
        inner.setattr(os, "environ", dict(os.environ))
        export_horovod(place)
        address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        assert address == f"{place.rendezvous}/{place.token}"
        assert detect(os.environ) == place


def test_a_token_is_never_told() -> None:
    told = variables(
        {"DREAM_TOKEN": "abc-secret", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1:4000/abc-secret"}
    )
    assert told == {
        "DREAM_TOKEN": "(set)",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1:4000/(set)",
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"HOROVOD_SIZE": ""}, "HOROVOD_SIZE missing"),
        ({"HOROVOD_LOCAL_RANK": ""}, "HOROVOD_LOCAL_RANK missing"),
        ({"HOROVOD_GLOO_RENDEZVOUS_PORT": ""}, "HOROVOD_GLOO_RENDEZVOUS_PORT missing"),
        ({"HOROVOD_RANK": "2"}, "rank 2"),
        ({"HOROVOD_CROSS_SIZE": "2"}, "MASTER_ADDR unset"),
    ],
)
def test_horovods_variables_that_cannot_be(change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        detect({**HOROVOD, **change})


def test_horovods_core_is_not_sent_where_it_cannot_go() -> None:
    """By IPv6 it would abort the process."""
    there = Endpoint("fd00::1", 29500)
    place = Cluster("dream run", rank=1, world_size=2, hosts=("a", "b"), rendezvous=there)
    with pytest.raises(Unsupported, match=r"the store at \[fd00::1\]:29500"):
        export_horovod(place)
