"""`dream run --on kubernetes`: a TrainJob for Kubeflow Trainer, or a JobSet where it is not.

Each pod is a host, on which `dream run` starts the ranks. The manifest is JSON in YAML's own terms,
which every YAML reader takes: no library writes it.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, final

from dream._errors import ConfigurationError
from dream.cluster import settings
from dream.launch.engines.engine import LaunchEngine, program, ranks_with_gpus
from dream.launch.engines.request import Request
from dream.launch.output import SCREEN

_HOW = "Install kubectl; or --dry-run shows the manifest."
_PORT = 29500
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_LONGEST_NAME = 50
"""Of 63, the rest of which the names of its parts take."""

Manifest = dict[str, Any]


@final
class Kubernetes(LaunchEngine):
    def written(self, request: Request) -> str:
        return yaml(manifest(request))

    def start(self, request: Request) -> int:
        text = self.written(request)
        apply = [program("kubectl", _HOW), "create", "-f", "-"]
        return subprocess.run(apply, input=text, text=True, check=False).returncode


def manifest(request: Request) -> Manifest:
    """Return the job as Kubernetes takes it."""
    given = request.given
    if not given.image:
        raise ConfigurationError(
            "A pod needs an image with dream, the framework and the script in it. Received: no "
            "--image. Build one (docs/starting.md has a Dockerfile), and pass --image NAME."
        )
    ranks_with_gpus(request, "the pod asks for as many cores")
    volume = _volume(request)
    _say_unkept(request, volume)
    return _job_set(request, volume) if given.jobset else _train_job(request)


def _volume(request: Request) -> tuple[str, str] | None:
    """Return the claim of --volume, and where pods have it."""
    given = request.given
    if given.volume is None:
        return None
    claim, _, path = given.volume.partition(":")
    if not claim or not path.startswith("/"):
        raise ConfigurationError(
            "A volume is the name of a PersistentVolumeClaim and a folder in the pod. Received: "
            f"--volume {given.volume}. Pass CLAIM:/FOLDER."
        )
    if not given.jobset:  # the field for it has another name in each version of Kubeflow Trainer
        raise ConfigurationError(
            f"A TrainJob takes its volumes from its runtime. Received: --volume {given.volume}, no "
            "--jobset. Add it to the runtime torch-distributed and remove it here, or pass "
            "--jobset."
        )
    return claim, path


def _say_unkept(request: Request, volume: tuple[str, str] | None) -> None:
    """Say where a checkpoint would end with its pod."""
    folder = request.given.checkpoint
    if folder is None or (volume and PurePosixPath(folder).is_relative_to(volume[1])):
        return
    SCREEN.say(
        f"--checkpoint {folder} is on no --volume: it is lost with the pod, unless the cluster "
        "mounts a volume there in every pod. Pass --jobset --volume CLAIM:/FOLDER, and a "
        "--checkpoint in that folder."
    )


def _train_job(request: Request) -> Manifest:
    """Kubeflow's runtime sets PET_*, which `dream run` reads."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": _name(request)},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "numNodes": request.nnodes,
                "numProcPerNode": request.n,
                "image": request.given.image,
                "command": ["dream", *_command(request)],
                "env": _token(request),
                "resourcesPerNode": _resources(request),
            },
        },
    }


def _job_set(request: Request, volume: tuple[str, str] | None) -> Manifest:
    """The same variables, set here: the pod's number comes from its job's index. volume: a claim
    that every pod has, and where."""
    name = _name(request)
    place = {
        "PET_NNODES": str(request.nnodes),
        "PET_NPROC_PER_NODE": str(request.n),
        "PET_MASTER_ADDR": f"{name}-ranks-0-0.{name}",
        "PET_MASTER_PORT": str(request.given.master_port or _PORT),
    }
    number = {"fieldRef": {"fieldPath": _INDEX}}
    container = {
        "name": "dream",
        "image": request.given.image,
        "command": ["dream", *_command(request, "--master-port", "--max-restarts")],
        "env": [
            *({"name": key, "value": value} for key, value in place.items()),
            {"name": "PET_NODE_RANK", "valueFrom": number},
            *_token(request),
        ],
        "resources": _resources(request),
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(request.given.grace) + 15,
        "containers": [container],
    }
    if volume:
        claim, path = volume
        container["volumeMounts"] = [{"name": "kept", "mountPath": path}]
        pod["volumes"] = [{"name": "kept", "persistentVolumeClaim": {"claimName": claim}}]
    job = {
        "parallelism": request.nnodes,
        "completions": request.nnodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": request.given.max_restarts},
            "replicatedJobs": [{"name": "ranks", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _command(request: Request, *less: str) -> list[str]:
    """Return what a pod runs. less: options that the manifest says otherwise."""
    options = iter(request.options)
    kept = [word for name in options for word in _kept(name, options, less)]
    return replace(request, options=tuple(kept)).command()


def _kept(name: str, options: Iterator[str], less: tuple[str, ...]) -> list[str]:
    if name in less:
        next(options)
        return []
    return [name]


def _name(request: Request) -> str:
    name = request.name
    if len(name) <= _LONGEST_NAME and re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", name):
        return name
    raise ConfigurationError(
        "A Kubernetes name starts with a letter, does not end with a hyphen, and has at most "
        f"{_LONGEST_NAME} lower-case letters, digits and hyphens. Received: {name!r}. Pass "
        "--job-name."
    )


def _token(request: Request) -> list[Manifest]:
    """The word that several hosts have in common, from a Secret: never in the manifest."""
    if request.nnodes == 1:
        return []
    secret = {"name": "dream-token", "key": "token"}
    return [{"name": settings.TOKEN, "valueFrom": {"secretKeyRef": secret}}]


def _resources(request: Request) -> Manifest:
    asked: Manifest = {"requests": {"cpu": str(request.n)}}
    if request.given.gpus:
        asked["limits"] = {"nvidia.com/gpu": str(request.given.gpus)}
    return asked


def yaml(value: Any, depth: int = 0) -> str:
    """Write a manifest as YAML: every text quoted as in JSON, of which YAML takes all."""
    pad = "  " * depth
    lines = []
    for key, content in value.items():
        if isinstance(content, dict) and content:
            lines.append(f"{pad}{key}:\n{yaml(content, depth + 1)}")
        elif isinstance(content, list) and content:
            lines.append(f"{pad}{key}:")
            lines += [_item(item, depth + 1) for item in content]
        else:
            lines.append(f"{pad}{key}: {json.dumps(content)}")
    return "\n".join(lines)


def _item(item: Any, depth: int) -> str:
    pad = "  " * depth
    if not isinstance(item, dict):
        return f"{pad}- {json.dumps(item)}"
    return f"{pad}- {yaml(item, depth + 1).lstrip()}"
