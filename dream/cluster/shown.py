"""The variables that launchers set, as `dream env` and reports show them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from dream.cluster.launcher import MASTER
from dream.cluster.launchers import TORCHRUN

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
