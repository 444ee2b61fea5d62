"""A rank's place under the starters of clusters: each launcher's row, and the traps."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import launch_scripts
import pytest

from dream import ConfigurationError
from dream._topology import Cluster, Endpoint
from dream.cluster import detect, export_horovod, horovod_environment, rendezvous
from dream.cluster.exchange import _located
from dream.cluster.launchers import several
from dream.cluster.nodes import gpus_here, node_place, pod_of
from dream.cluster.placing import counts_of, layout_of, names_of

Environ = dict[str, str]
TOKEN = {"DREAM_TOKEN": "a-secret-of-several-hosts"}
MASTER = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def srun(rank: int, nodes: str = "n[0-1]", counts: str = "2,1", **more: str) -> Environ:
    """As srun of Slurm 22.05 sets them, block by block."""
    tasks = counts_of(counts, "counts")
    node = next(i for i in range(len(tasks)) if rank < sum(tasks[: i + 1]))
    size = str(sum(tasks))
    return {
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank - sum(tasks[:node])), "SLURM_NODEID": str(node),
        "SLURM_NTASKS": size, "SLURM_STEP_NUM_TASKS": size, "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_LAUNCH_NODE_IPADDR": "10.9.9.9",
        "SLURM_JOB_NODELIST": "elsewhere[0-9]", **TOKEN, **more,
    }  # fmt: skip


def open_mpi(rank: int, local: int, size: int = 4, local_size: int = 2, **more: str) -> Environ:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local), "OMPI_COMM_WORLD_LOCAL_SIZE": str(local_size),
        "OMPI_COMM_WORLD_NODE_RANK": str(local), "PMIX_NAMESPACE": "1692270593",
        "PMIX_RANK": str(rank), **TOKEN, **more,
    }  # fmt: skip


def spot(environ: Environ) -> tuple[int, int, int, int, int, int]:
    place = detect(environ)
    return (
        place.rank, place.world_size, place.local_rank, place.local_world_size, place.node_rank,
        len(place.hosts),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        pytest.param(srun(3, counts="2(x2)"), (3, 4, 1, 2, 1, 2), id="srun, two hosts"),
        pytest.param(srun(1, counts="4", nodes="n7"), (1, 4, 1, 4, 0, 1), id="srun, one host"),
        pytest.param(srun(2, "n[0-2]", "1(x2),1"), (2, 3, 0, 1, 2, 3), id="srun, three hosts"),
        pytest.param(open_mpi(3, 1, **MASTER), (3, 4, 1, 2, 1, 2), id="mpirun, in blocks"),
        pytest.param(open_mpi(1, 1, 2), (1, 2, 1, 2, 0, 1), id="mpirun, one host"),
        pytest.param(
            {"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_LOCAL_RANK":
             "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2", **MASTER},
            (1, 2, 1, 2, 0, 1), id="MVAPICH2"),
        pytest.param(
            {"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "3",
             **MASTER, **TOKEN},
            (5, 6, 2, 3, 1, 2), id="MPICH"),
        pytest.param(
            {"PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PMI_SIZE": "4",
             "PALS_APID": "x", **MASTER, **TOKEN},
            (3, 4, 1, 2, 1, 2), id="PALS"),
        pytest.param(
            {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1",
             "FLUX_JOB_NNODES": "2", "FLUX_JOB_ID": "f1", **MASTER, **TOKEN},
            (3, 4, 1, 2, 1, 2), id="Flux"),
        pytest.param(
            {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "a",
             **TOKEN},
            (1, 2, 0, 1, 1, 2), id="JAX"),
        pytest.param(
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
             "NODE_RANK": "1", **MASTER, **TOKEN},
            (3, 4, 1, 2, 1, 2), id="a worker of Ray Train"),
        pytest.param(
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "1",
             "AZUREML_NODE_COUNT": "2", **MASTER, **TOKEN},
            (5, 8, 1, 4, 1, 2), id="AzureML's torch"),
        pytest.param(
            open_mpi(3, 1, PMIX_NAMESPACE="prterun-h-77@1", PRTE_LAUNCHED="1",
                     AZ_BATCH_MASTER_NODE="10.0.0.4:6000"),
            (3, 4, 1, 2, 1, 2), id="Open MPI 5, on AzureML"),
        pytest.param(
            {**open_mpi(1, 1, 2), "OMPI_MCA_orte_num_nodes": "2"},
            (1, 2, 1, 2, 0, 1), id="mpirun, a host without ranks"),
    ],
)  # fmt: skip
def test_places(environ: Environ, place: tuple[int, ...]) -> None:
    assert spot(environ) == place


def test_jsrun_reads_its_rank_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = tmp_path / "ranks"
    ranks.write_text("launch\nc1\nc1\nc2\nc2\n")
    monkeypatch.setattr("socket.gethostname", lambda: "c2.cluster")
    environ = {
        "JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "1",
        "LSB_DJOB_RANKFILE": str(ranks), "LSB_JOBID": "5", **TOKEN,
    }  # fmt: skip
    assert spot(environ) == (3, 4, 1, 2, 1, 2)
    master = detect(environ).master
    assert master is not None
    assert master.host == "c1"


def test_pals_counts_the_ranks_of_all_hosts(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("x1\nx2\n")
    environ = {
        "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PALS_APID": "a",
        "PBS_NODEFILE": str(hosts), **TOKEN,
    }  # fmt: skip
    place = detect(environ)
    assert (place.rank, place.world_size, place.node_rank) == (3, 4, 1)
    assert place.master is not None
    assert place.master.host == "x1"


def test_a_steps_ranks_agree_on_the_steps_first_host() -> None:
    places = [detect(srun(rank, counts="2(x2)")) for rank in range(4)]
    assert {place.master for place in places} == {places[0].master}
    assert places[0].master is not None
    assert places[0].master.host == "n0"  # not where srun was typed, nor the job's first
    assert [place.serves_rendezvous for place in places] == [True, False, False, False]
    assert len({place.token for place in places}) == 1


def test_steps_and_jobs_side_by_side_have_ports_of_their_own() -> None:
    masters = [
        detect(srun(0, counts="2(x2)", **other)).master
        for other in ({}, {"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "78"})
    ]
    assert len({master.port for master in masters if master}) == 3


def test_a_port_is_one_of_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAM_PORT_RANGE", "41000-41003")
    place = detect(srun(0, counts="2(x2)"))
    assert place.master is not None
    assert place.rendezvous is not None
    assert place.master.port in (41000, 41002)
    assert place.rendezvous.port == place.master.port + 1


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0",
                      "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}, id="a batch script"),
        pytest.param(srun(0, counts="1", nodes="n0"), id="a step of one task"),
        pytest.param({"PMI_RANK": "0", "PMI_SIZE": "1"}, id="one of PMI"),
        pytest.param({"JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "x"}, id="a pod"),
        pytest.param({"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1"}, id="one host"),
    ],
)  # fmt: skip
def test_one_process_is_alone(environ: Environ) -> None:
    assert detect(environ).alone


def test_azures_first_host_is_its_own_word() -> None:
    master = detect(open_mpi(3, 1, AZ_BATCH_MASTER_NODE="10.0.0.4:6000")).master
    assert master is not None
    assert master.host == "10.0.0.4"


def test_a_rank_0_that_torchrun_put_on_another_host_is_told() -> None:
    """192.0.2.1 is nobody's."""
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    place = detect({**torchrun, "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500", **TOKEN})
    with pytest.raises(ConfigurationError, match="Set MASTER_ADDR to the host of rank 0"):
        rendezvous(place)


def test_the_inner_launcher_wins() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert detect({**srun(0), **torchrun, **MASTER}).source == "torchrun"
    assert detect({**srun(0), **open_mpi(1, 1, 2)}).source == "Open MPI"
    pmi = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMIX_NAMESPACE": "slurm.pmix.1.0", "PMIX_RANK": "1"}
    step = srun(1, counts="2(x2)") | pmi  # of srun --mpi=pmi2 and pmix
    assert detect(step).source == "srun"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "each process would train a copy"),
        ({"PMIX_NAMESPACE": "x", "PMIX_RANK": "1"}, "PMIX_NAMESPACE=x"),
        (open_mpi(3, 1), "does not say which host rank 0 runs on"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK missing"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
         "does not name the job"),
        ({**srun(0), "SLURM_NODEID": "5"}, "two different job steps"),
        (srun(0, "n[0-", "2(x2)"), "not a valid list of hosts"),
        ({**srun(0), "SLURM_STEP_TASKS_PER_NODE": "2x"}, "not a valid list of tasks"),
        ({"RANK": "1", "WORLD_SIZE": "2", **MASTER}, "starts only one process on each host"),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "1"}, "Launch `dream run SCRIPT`"),
        ({"PET_NNODES": "2"}, "Kubeflow Trainer does not say which host this is"),
        ({"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "a:1"}, "hosts of a job must be fixed"),
        ({"SM_HOSTS": '["a", "b"]'}, "SageMaker does not say which host this is"),
        ({"SM_RESOURCE_CONFIG": '{"current_host": "a", "hosts": ["a", "b"]}'}, "host 0 of 2"),
        ({"NODE_RANK": "1", "NNODES": "2"}, "Launch `dream run SCRIPT`"),
        ({"NODE_RANK": "0", "NUM_NODES": "2"}, "Launch `dream run SCRIPT`"),
        ({"NODE_RANK": "1"}, "would train a copy. Received: NODE_RANK=1"),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": "1"}, "SLURM_PROCID=1"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1"),
        ({"ALPS_APP_PE": "3"}, "ALPS_APP_PE=3"),
        ({"FLUX_JOB_SIZE": "2"}, "FLUX_JOB_SIZE=2"),
        ({"JSM_NAMESPACE_SIZE": "2"}, "JSM_NAMESPACE_SIZE=2"),
        ({"PALS_LOCAL_RANKID": "1"}, "PALS_LOCAL_RANKID=1"),
        ({"MV2_COMM_WORLD_LOCAL_RANK": "1"}, "MV2_COMM_WORLD_LOCAL_RANK=1"),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, "OMPI_COMM_WORLD_LOCAL_RANK=1"),
        ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}, "SkyPilot"),
        ({"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "b"}, "SageMaker"),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "0"},
         "FLUX_JOB_NNODES missing"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused(environ: Environ, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        detect(environ)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("told", "layout"),
    [
        (["a 0", "a 1", "b 0", "b 1"], (0, 0, 1, 1)),
        (["a 0", "b 0", "a 1", "b 1"], (0, 1, 0, 1)),  # mpirun --map-by node, srun -m cyclic
        (["a 0", "a 1", "b 0"], (0, 0, 1)),  # srun -N2 -n3
        (["b 1", "a 0", "b 0"], (0, 1, 0)),
    ],
)
def test_ranks_tell_one_another_where_they_are(told: list[str], layout: tuple[int, ...]) -> None:
    """Each knows its own host alone, and the first sees nothing that is out of order."""
    assert layout_of(parsed(told), "srun") == layout
    with ThreadPoolExecutor(len(told)) as ranks:
        port = launch_scripts.free_port()
        environs = [
            open_mpi(rank, int(local), len(told), 2 if host == "a" else 3, MASTER_ADDR="127.0.0.1",
                     MASTER_PORT=str(port))
            for rank, (host, local) in enumerate(map(str.split, told))
        ]  # fmt: skip
        alone = [
            replace(detect(each), host=said[0]) for each, said in zip(environs, told, strict=True)
        ]
        places = list(ranks.map(_located, alone))
    assert [place.node_rank for place in places] == [*layout]
    for place in places:
        assert place.local_world_size == layout.count(place.node_rank)
        assert [place.node_of(rank) for rank in range(len(told))] == [*layout]
        assert place.rank in place.ranks_on(place.node_rank)
        assert len(place.hosts) == 1 + max(layout)


def parsed(told: list[str]) -> list[tuple[str, int]]:
    return [(one[0], int(one[2:])) for one in told]


def test_two_hosts_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"local ranks 0, 0, 1, 1 on a\. Give each host"):
        layout_of(parsed(["a 0", "a 1", "a 0", "a 1"]), "Open MPI")


def test_horovod_connects_the_ranks_of_one_local_number_alone() -> None:
    place = Cluster("srun", 0, world_size=3, local_world_size=2, hosts=("a", "b"),
                    layout=(0, 0, 1), rendezvous=Endpoint("127.0.0.1", 1))  # fmt: skip
    told = [
        horovod_environment(replace(place, rank=rank, local_rank=local, node_rank=node))
        for rank, local, node in ((0, 0, 0), (1, 1, 0), (2, 0, 1))
    ]
    across = [(one["HOROVOD_CROSS_RANK"], one["HOROVOD_CROSS_SIZE"]) for one in told]
    assert across == [("0", "2"), ("0", "1"), ("1", "2")]


def test_a_place_is_the_same_once_horovods_core_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = srun(1, "127.0.0.[2-3]", "2(x2)")
    monkeypatch.setattr("os.environ", environ)
    place = detect(os.environ, asks=False)
    export_horovod(place)
    assert os.environ["HOROVOD_RANK"] == "1"
    assert detect(os.environ, asks=False) == place


@pytest.mark.parametrize("rank", range(3))
def test_an_uneven_flux_job_is_asked_for(rank: int) -> None:
    local = [0, 1, 0][rank]
    environ = {
        "FLUX_TASK_RANK": str(rank), "FLUX_JOB_SIZE": "3", "FLUX_TASK_LOCAL_ID": str(local),
        "FLUX_JOB_NNODES": "2", "FLUX_JOB_ID": "f1", **MASTER, **TOKEN,
    }  # fmt: skip
    place = detect(environ)
    assert place.host == socket.gethostname()
    assert (place.rank, place.local_rank, len(place.hosts)) == (rank, local, 2)
    assert not detect({**environ, "FLUX_JOB_NNODES": "1"}).host


def test_several_hosts_of_a_cluster_share_the_homes_secret(tmp_path: Path) -> None:
    step, beside = (
        srun(rank, counts="2(x2)", HOME=str(tmp_path), DREAM_TOKEN="") for rank in (0, 1)
    )
    first, other = detect(step).token, detect(beside).token
    assert first == other
    (secret,) = (tmp_path / ".dream").iterdir()
    assert secret.stat().st_mode & 0o777 == 0o600
    assert detect({**step, "SLURM_JOB_ID": "78"}).token != first
    with pytest.raises(ConfigurationError, match="DREAM_TOKEN"):
        detect({**step, "HOME": ""})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("node[001-003,020],gpu3", ["node001", "node002", "node003", "node020", "gpu3"]),
        ("r[1-2]c[08-09]", ["r1c08", "r1c09", "r2c08", "r2c09"]),
        ("a,b[7]-x", ["a", "b7-x"]),
    ],
)
def test_lists_of_hosts(text: str, names: list[str]) -> None:
    assert names_of(text) == names


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "4", "PET_MASTER_ADDR":
          "job-node-0-0.job", "PET_MASTER_PORT": "29500"},
         (1, 2, 4, "job-node-0-0.job", 29500)),
        ({"PET_NNODES": "3:3", "PET_NODE_RANK": "2", "PET_NPROC_PER_NODE": "auto"},
         (2, 3, None, None, None)),
        ({"RANK": "1", "WORLD_SIZE": "3", **MASTER}, (1, 3, None, "10.0.0.1", 29500)),
        ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
          "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}, (1, 2, 8, "10.0.0.1", None)),
        ({"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2", "SM_NUM_GPUS": "0"},
         (1, 2, None, "algo-1", None)),
        ({"CLUSTER_SPEC": '{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}, '
          '"task": {"type": "workerpool1", "index": 0}}'}, (1, 2, None, "a", 2222)),
        ({"NODE_RANK": "1", "NUM_NODES": "2", **MASTER}, (1, 2, None, "10.0.0.1", 29500)),
        ({"NODE_RANK": "1", "AZUREML_NODE_COUNT": "2", **MASTER}, (1, 2, None, "10.0.0.1", 29500)),
        ({"RANK": "1", "WORLD_SIZE": "2", "NPROC_PER_NODE": "8", **MASTER},
         (1, 2, 8, "10.0.0.1", 29500)),
    ],
)  # fmt: skip
def test_platforms_that_start_one_process_a_host(
    environ: Environ, place: tuple[object, ...]
) -> None:
    found = node_place(environ)
    assert found is not None
    told = (found.node, found.nodes, found.ranks, found.master_addr, found.master_port)
    assert told == place


def test_a_pod_of_several_knows_the_first_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getfqdn", lambda: "train-ranks-0-3.train.ns.svc")
    place = pod_of({"JOB_COMPLETION_INDEX": "3"}, 4)
    assert place is not None
    assert (place.node, place.nodes, place.master_addr) == (3, 4, "train-ranks-0-0.train.ns.svc")
    assert pod_of({}, 4) is None
    with pytest.raises(ConfigurationError, match="does not say which host this is"):
        pod_of({"JOB_COMPLETION_INDEX": "4"}, 4)
    monkeypatch.setattr("socket.getfqdn", lambda: "a-laptop-3")
    told = node_place({"JOB_COMPLETION_INDEX": "3", "NNODES": "4"})
    assert told is not None
    assert (told.node, told.nodes, told.master_addr) == (3, 4, None)


def test_dream_run_asks_how_many_pods_there_are() -> None:
    ran = launch_scripts.dream("run", "-n", "1", __file__, env={"JOB_COMPLETION_INDEX": "0"})
    assert ran.returncode == 2
    assert "Received: JOB_COMPLETION_INDEX=0, no --nnodes. Pass --nnodes K" in ran.stderr


def test_a_sagemaker_container_without_its_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "resourceconfig.json"
    file.write_text('{"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}')
    monkeypatch.setattr("dream.cluster.nodes.SAGEMAKER_FILE", str(file))
    with pytest.raises(ConfigurationError, match="host 1 of 2"):
        detect({})


def test_a_pod_of_an_indexed_job_is_told_that_it_trains_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "dream"):
        assert detect({"JOB_COMPLETION_INDEX": "5"}).alone
    assert "number 5 of an Indexed Job" in caplog.text


def test_ranks_and_hosts_are_told_apart() -> None:
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert node_place({**ranks, **MASTER}) is None
    assert node_place({}) is None
    assert detect({}) == Cluster()


def test_who_has_started_several() -> None:
    assert [row.source for row in several(srun(0))] == ["srun"]
    assert [row.source for row in several({"PMI_RANK": "0", "PMI_SIZE": "2"})] == ["MPICH"]
    assert [row.source for row in several(open_mpi(0, 0))] == ["Open MPI"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_shell_on_a_terminal_is_alone_and_what_it_starts_is_not(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun in that shell hands the shell's variable on."""
    monkeypatch.setattr("os.isatty", lambda _: terminal)
    environ = srun(1, counts="2(x2)", SLURM_PTY_PORT="1234")
    assert detect(environ).alone == terminal
    assert (several(environ) == ()) == terminal


@pytest.mark.parametrize(("told", "count"), [("0,1,2", 3), ("", 0), ("-1", 0), ("MIG-a", 1)])
def test_gpus_are_those_that_are_shown(told: str, count: int) -> None:
    assert gpus_here({"CUDA_VISIBLE_DEVICES": told}) == count
