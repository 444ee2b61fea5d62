"""Where each launcher puts this process: a row a launcher, code only where a row does not do.

The first whose variables are there counts. Under `dream run` the store's address and the workers'
endpoints come along; under any other rank 0 serves the store, at a port that torch's gives, or at
DREAM_RENDEZVOUS_PORT, and the workers' endpoints are exchanged over it. Where a launcher tells no
port, it comes from what names the job. Several hosts need DREAM_TOKEN, save on Spark, where
Horovod's launcher gives its processes a secret, and on clusters, where the user's home folder
keeps one. A process that is one of several whose place cannot be told is refused: it would train a
copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

from dream._errors import ConfigurationError
from dream._log import logger, speak_as
from dream._topology import Cluster, Endpoint
from dream.cluster import nodes, placing, settings, tf_config
from dream.cluster.launcher import MASTER, Environ, Launcher
from dream.cluster.ports import LOOPBACK

TORCHRUN = Launcher(  # and Ray Train's workers, Determined's
    source="torchrun",
    rank="RANK",
    size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_size="LOCAL_WORLD_SIZE",
    node="GROUP_RANK",
    job=(*MASTER, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    by_hand=True,
)
AZURE = replace(  # its start of torch's processes: how many a host has follows from the hosts
    TORCHRUN,
    source="AzureML",
    local_size="",
    node="NODE_RANK",
    nodes="AZUREML_NODE_COUNT",
    marks=("AZUREML_NODE_COUNT", "LOCAL_RANK"),
)
DREAM = replace(TORCHRUN, source="dream run", ours=True)
HOROVOD = Launcher(
    source="Horovod's launcher",
    rank="HOROVOD_RANK",
    size="HOROVOD_SIZE",
    local_rank="HOROVOD_LOCAL_RANK",
    local_size="HOROVOD_LOCAL_SIZE",
    node="HOROVOD_CROSS_RANK",
    nodes="HOROVOD_CROSS_SIZE",
    job=("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    beside="HOROVOD_GLOO_RENDEZVOUS_PORT",  # its own store, which is open to whoever finds it
)
OPEN_MPI = Launcher(
    source="Open MPI",
    rank="OMPI_COMM_WORLD_RANK",
    size="OMPI_COMM_WORLD_SIZE",
    job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    spot=placing.mpi_spot,
    first=placing.allocated_first,  # mpirun itself may run on a host without ranks
    home=True,
)
MVAPICH = Launcher(
    source="MVAPICH2",
    rank="MV2_COMM_WORLD_RANK",
    size="MV2_COMM_WORLD_SIZE",
    local_rank="MV2_COMM_WORLD_LOCAL_RANK",
    local_size="MV2_COMM_WORLD_LOCAL_SIZE",
    spot=placing.mpi_spot,
    names=placing.hydra_job,
    first=placing.allocated_first,
    home=True,
)
PALS = Launcher(
    source="PALS",
    rank="PALS_RANKID",
    size="PMI_SIZE",
    job=("PALS_APID",),
    local_rank="PALS_LOCAL_RANKID",
    local_size="PALS_LOCAL_SIZE",
    spot=placing.mpi_spot,
    marks=("PALS_RANKID",),
    first=placing.allocated_first,
    home=True,
)
HYDRA = Launcher(  # MPICH, Intel MPI
    source="MPICH",
    rank="PMI_RANK",
    size="PMI_SIZE",
    local_rank="MPI_LOCALRANKID",
    local_size="MPI_LOCALNRANKS",
    spot=placing.mpi_spot,
    marks=("MPI_LOCALRANKID",),
    names=placing.hydra_job,
    first=placing.allocated_first,
    home=True,
)
FLUX = Launcher(
    source="Flux",
    rank="FLUX_TASK_RANK",
    size="FLUX_JOB_SIZE",
    local_rank="FLUX_TASK_LOCAL_ID",
    nodes="FLUX_JOB_NNODES",
    job=("FLUX_JOB_ID",),
    spot=placing.flux_spot,
    marks=("FLUX_TASK_RANK",),
    first=placing.allocated_first,
    home=True,
)
JSRUN = Launcher(
    source="jsrun",
    rank="JSM_NAMESPACE_RANK",
    size="JSM_NAMESPACE_SIZE",
    job=("LSB_JOBID", "JSM_NAMESPACE_ID"),
    local_rank="JSM_NAMESPACE_LOCAL_RANK",
    spot=placing.lsf_spot,
    marks=("JSM_NAMESPACE_RANK",),
    first=placing.lsf_first,
    home=True,
)
SRUN = Launcher(  # its variables are in a batch script too, which is one process: not the step's
    source="srun",
    rank="SLURM_PROCID",
    size="SLURM_STEP_NUM_TASKS",
    job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    local_rank="SLURM_LOCALID",
    node="SLURM_NODEID",
    spot=placing.slurm_spot,
    marks=("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS"),
    first=placing.slurm_first,
    home=True,
)
JAX = Launcher(
    source="JAX's TrainJob",
    rank="JAX_PROCESS_ID",
    size="JAX_NUM_PROCESSES",
    job=("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"),
    spot=placing.one_a_host,
    first=placing.jax_first,
)


def _pals(environ: Environ) -> Cluster | None:
    """PALS promises no number of all ranks: it is that of the hosts times a host's."""
    hosts = len({*placing.lines_of(environ, "PBS_NODEFILE")})
    size = environ.get("PALS_LOCAL_SIZE", "")
    if environ.get("PMI_SIZE") or not (hosts and size.isdecimal()):
        return PALS.read(environ)
    return PALS.read({**environ, "PMI_SIZE": str(hosts * int(size))})


def _azure(environ: Environ) -> Cluster | None:
    """torchrun inside AzureML tells more."""
    return None if environ.get(TORCHRUN.local_size) else AZURE.read(environ)


def _horovod(environ: Environ) -> Cluster | None:
    """What dream itself has told Horovod's core is no launcher's word: a later look at this
    process's place finds who started it."""
    ours = environ.get(settings.OWN_HOROVOD) == str(os.getpid())
    return None if ours else HOROVOD.read(environ)


def _srun(environ: Environ) -> Cluster | None:
    """A shell on a terminal is one process, however many tasks its step has."""
    return None if _on_a_terminal(environ) else SRUN.read(environ)


def _on_a_terminal(environ: Environ) -> bool:
    """Whether this runs in a shell that srun has put on a terminal. The variable alone does not
    tell: steps that are started from that shell inherit it."""
    return bool(environ.get("SLURM_PTY_PORT")) and os.isatty(0)


READERS: tuple[Callable[[Environ], Cluster | None], ...] = (
    DREAM.read,
    _azure,
    TORCHRUN.read,
    tf_config.read,
    _horovod,
    OPEN_MPI.read,
    MVAPICH.read,
    _pals,
    HYDRA.read,
    FLUX.read,
    JSRUN.read,
    _srun,
    JAX.read,
)
"""In the order in which they are trusted: what was started inside another comes first. A launcher
that a row describes needs no more than that row; another brings a function of its own."""

_STARTERS = (TORCHRUN, HOROVOD, OPEN_MPI, MVAPICH, replace(HYDRA, marks=()), FLUX, JSRUN, SRUN, JAX,
             replace(PALS, size=PALS.local_size))  # fmt: skip
"""PMI_SIZE counts processes, whoever has set it."""
_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE",
          "JSM_NAMESPACE_SIZE", "PALS_LOCAL_SIZE")  # fmt: skip
_NUMBERS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK",
            "MPI_LOCALRANKID", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_PROCID",
            "JSM_NAMESPACE_LOCAL_RANK", "ALPS_APP_PE", "NODE_RANK")  # fmt: skip
"""Traces of starters, for where no row can tell a place: a size above 1 says that there are others,
and so does a number above 0."""


def detect(environ: Mapping[str, str] = os.environ) -> Cluster:
    """Return this process's place, from the first launcher whose variables are there."""
    nodes.refuse_one_of_hosts(nodes.torch_hosts(environ))
    places = (read(environ) for read in READERS)
    place = next((place for place in places if place is not None), None)
    if place is None:
        nodes.refuse_one_of_hosts(nodes.node_place(environ))
        _refuse_copies(environ)
        if environ.get("JOB_COMPLETION_INDEX"):
            _say_of_a_pod(environ["JOB_COMPLETION_INDEX"])
    return inward(place or Cluster())


def _refuse_copies(environ: Environ) -> None:
    """Raise for one of several processes of a launcher that tells no place."""
    told = {name: environ[name] for name in _SIZES if _above(environ, name, 1)}
    told |= {name: environ[name] for name in _NUMBERS if _above(environ, name, 0)}
    if environ.get("PMIX_NAMESPACE") and environ.get("PMI_SIZE") != "1":
        told["PMIX_NAMESPACE"] = environ["PMIX_NAMESPACE"]
    if not told or _on_a_terminal(environ):
        return
    received = ", ".join(f"{name}={value}" for name, value in told.items())
    raise ConfigurationError(
        "An unknown launcher started this process, and its rank cannot be determined: each process "
        f"would train a copy. Received: {received}. Set RANK, WORLD_SIZE, LOCAL_RANK, "
        "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or unset these variables to train alone."
    )


def _above(environ: Environ, name: str, least: int) -> bool:
    value = environ.get(name, "")
    return value.isdecimal() and int(value) > least


@cache
def _say_of_a_pod(index: str) -> None:
    """Pods of an Indexed Job may be one training or many: nothing tells how many there are."""
    speak_as(0)  # a block does so only once it knows its place
    logger.info(
        "This pod is number %s of an Indexed Job (JOB_COMPLETION_INDEX) and trains alone. If the "
        "pods should train together, start each with `dream run --nnodes K -n N SCRIPT`.",
        index,
    )


def several(environ: Environ) -> tuple[Launcher, ...]:
    """Return the launchers that have started several processes, of which this is one."""
    alone = SRUN if _on_a_terminal(environ) else None
    return tuple(row for row in _STARTERS if row.started(environ) and row is not alone)


def inward(cluster: Cluster) -> Cluster:
    """Put all addresses of a job on one host on loopback, whatever name the launcher has for the
    host: what the job listens on, nobody else reaches."""
    if cluster.alone or not cluster.one_host:
        return cluster

    def on_loopback(there: Endpoint | None) -> Endpoint | None:
        return there and Endpoint(LOOPBACK, there.port)

    return replace(
        cluster,
        master=on_loopback(cluster.master),
        rendezvous=on_loopback(cluster.rendezvous),
        workers=tuple(Endpoint(LOOPBACK, worker.port) for worker in cluster.workers),
    )


_SHOWN = (TORCHRUN.rank, TORCHRUN.size, TORCHRUN.local_rank, TORCHRUN.local_size, TORCHRUN.node,
          "NODE_RANK", "NNODES", "NUM_NODES", *MASTER, "TF_CONFIG", "NPROC_PER_NODE",
          "CLUSTER_SPEC", "JOB_COMPLETION_INDEX", "AZUREML_NODE_COUNT",
          "AZ_BATCH_MASTER_NODE")  # fmt: skip
_PREFIXES = ("DREAM_", "HOROVOD_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "MPI_LOCAL",
             "KUBERNETES_", "ALPS_", "MV2_", "PALS_", "FLUX_", "JSM_", "JAX_", "PET_", "SKYPILOT_",
             "SM_HOSTS", "SM_CURRENT", "SM_RESOURCE")  # fmt: skip
_SECRET = ("TOKEN", "KEY", "SECRET", "PASSWORD", "TRANSPORTS")
_RIDING = re.compile(r"^([^/\s]+:\d+)/\S+$")
"""The rendezvous's address with the token in it."""


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what launchers have set, ours and others; secrets stay secret."""
    found = {k: v for k, v in sorted(environ.items()) if k in _SHOWN or k.startswith(_PREFIXES)}
    return {
        name: "(set)"
        if any(word in name.upper() for word in _SECRET)
        else _RIDING.sub(r"\1/(set)", value)
        for name, value in found.items()
    }
