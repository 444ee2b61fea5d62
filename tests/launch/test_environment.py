"""One environment for every framework, on paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dream import ConfigurationError, Unsupported
from dream._topology import Cluster, Endpoint
from dream.cluster import detect
from dream.launch.environment import rank_environment
from dream.launch.job import Job, frameworks
from dream.launch.joined.threads import _quota, cores


def place(rank: int = 1, world_size: int = 2) -> Cluster:
    return Cluster(
        source="dream run",
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        master=Endpoint("127.0.0.1", 4001),
        rendezvous=Endpoint("127.0.0.1", 4002),
        token="a-word-of-the-jobs",
        workers=tuple(Endpoint("127.0.0.1", 5000 + rank) for rank in range(world_size)),
    )


def environment(n: int = 2, **settings: object) -> dict[str, str]:
    environ = {"HOME": "/home/me"} | dict(settings.pop("environ", {}))  # type: ignore[call-overload]
    job = Job(command=(), n=n, environ=environ, **settings)  # type: ignore[arg-type]
    return rank_environment(job, place(rank=n - 1, world_size=n))


def test_what_is_written_is_what_detect_reads() -> None:
    assert detect(environment()) == place()


def test_every_framework_finds_its_own() -> None:
    environ = environment()
    assert (environ["RANK"], environ["LOCAL_RANK"]) == ("1", "1")
    assert (environ["WORLD_SIZE"], environ["LOCAL_WORLD_SIZE"]) == ("2", "2")
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("127.0.0.1", "4001")
    assert json.loads(environ["TF_CONFIG"]) == {
        "cluster": {"worker": ["127.0.0.1:5000", "127.0.0.1:5001"]},
        "task": {"type": "worker", "index": 1},
    }
    assert environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "127.0.0.1:4002/a-word-of-the-jobs"
    assert environ["HOME"] == "/home/me"


def test_alone_no_tf_config() -> None:
    assert "TF_CONFIG" not in environment(n=1, environ={"TF_CONFIG": "{}"})


def test_another_launchers_place_is_not_ours() -> None:
    stale = {"HOROVOD_RANK": "7", "TORCHELASTIC_RUN_ID": "x", "DREAM_STRATEGY": "x", "RANK": "7",
             "PMI_SIZE": "2", "PMIX_NAMESPACE": "x"}  # fmt: skip
    environ = environment(environ=stale)
    assert (environ["HOROVOD_RANK"], environ["RANK"]) == ("1", "1")
    assert "TORCHELASTIC_RUN_ID" not in environ
    assert "DREAM_STRATEGY" not in environ
    assert not [name for name in environ if name.startswith("PMI")]  # MPICH aborts where both are


def test_the_cores_are_shared_out() -> None:
    share = str(max(1, cores() // 2))
    environ = environment()
    assert (environ["OMP_NUM_THREADS"], environ["TF_NUM_INTRAOP_THREADS"]) == (share, share)
    assert "OMP_NUM_THREADS" not in environment(n=1)


def test_what_the_user_set_stays() -> None:
    users = {
        "OMP_NUM_THREADS": "7",
        "TF_NUM_INTEROP_THREADS": "3",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "HOROVOD_CYCLE_TIME": "5",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "9",
    }
    environ = environment(environ=users)
    assert {name: environ[name] for name in users} == users
    assert environ["MKL_NUM_THREADS"] == "7"


def test_frameworks_are_dealt_out_by_rank() -> None:
    job = Job(command=(), n=3, frameworks=frameworks("torch,tensorflow"), environ={})
    ranks = [rank_environment(job, place(rank, 3)) for rank in range(3)]
    assert [r["DREAM_FRAMEWORK"] for r in ranks] == ["torch", "tensorflow", "torch"]
    assert [r["KERAS_BACKEND"] for r in ranks] == ["torch", "tensorflow", "torch"]


def test_the_users_keras_backend_stays() -> None:
    environ = environment(frameworks=("torch",), environ={"KERAS_BACKEND": "jax"})
    assert environ["KERAS_BACKEND"] == "jax"


def test_one_keras_backend_for_all_cannot_fit_ranks_of_two_frameworks() -> None:
    given = {"KERAS_BACKEND": "tensorflow"}
    job = Job(command=(), n=2, frameworks=frameworks("torch,tensorflow"), environ=given)
    first = rank_environment(job, place(0, 2))
    assert first["KERAS_BACKEND"] == "torch"
    assert first["DREAM_FRAMEWORKS"] == "torch,tensorflow"


def test_the_strategy_is_passed_on() -> None:
    assert environment(strategy="mirrored:bucket_mb=5")["DREAM_STRATEGY"] == "mirrored:bucket_mb=5"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n": 0}, "at least 1. Received: 0"),
        ({"n": 1, "nnodes": 0}, "--nnodes must be at least 1"),
        ({"n": 1, "node_rank": 1}, "--node-rank 1, --nnodes 1"),
        ({"n": 1, "nnodes": 2, "node_rank": -1}, "--node-rank -1"),
        ({"n": 1, "master_port": 70000}, "not a valid port. Received: 70000"),
        ({"n": 1, "frameworks": ("torch", "tensorflow")}, "more frameworks than ranks"),
        ({"n": 2, "strategy": "single"}, "runs in one process"),
        ({"n": 2, "strategy": "mirored"}, "Did you mean 'mirrored'"),
        ({"n": 2, "strategy": "mirrored:buckets=5"}, "Did you mean 'bucket_mb'"),
        ({"n": 2, "strategy": "horovod:reduction=gloo"}, "Unknown reduction"),
    ],
)
def test_bad_input(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Job(command=(), **settings)  # type: ignore[arg-type]
    assert words in str(error.value)


def test_a_strategy_that_the_framework_cannot_honour() -> None:
    with pytest.raises(Unsupported, match="reduction='grpc'"):
        Job(command=(), n=2, strategy="mirrored:reduction=grpc", frameworks=("torch",))


def test_unknown_frameworks() -> None:
    with pytest.raises(ConfigurationError, match=r"'jax'. Known: tensorflow, torch"):
        frameworks("torch,jax")


def test_a_control_groups_quota_counts(tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text("150000 100000\n")
    assert _quota(file) == 2
    file.write_text("max 100000\n")
    assert _quota(file) > 1000
    assert _quota(tmp_path / "absent") > 1000
