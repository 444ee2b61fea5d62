"""`dream run --on kubernetes`: manifests that the published schemas take, and what they start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from launch_scripts import dream

from dream.cluster.nodes import node_place
from dream.launch.engines.kubernetes import yaml

# The part of the published definitions (Kubeflow Trainer v1alpha1, JobSet v1alpha2, batch/v1) that
# manifests of ours may use: a field that is not here is one that nobody has looked up.
# A name that ends in "!" is required.
ENV = [{"name!": str, "value": str, "valueFrom": {
    "fieldRef": {"fieldPath!": str}, "secretKeyRef": {"key!": str, "name": str}}}]  # fmt: skip
AMOUNTS = {"*": str}
RESOURCES = {"requests": AMOUNTS, "limits": AMOUNTS}
HEAD = {"apiVersion!": str, "kind!": str, "metadata!": {"name!": str}}
TRAIN_JOB = {**HEAD, "spec!": {
    "runtimeRef!": {"name!": str},
    "trainer": {"numNodes": int, "numProcPerNode": int, "image": str, "command": [str],
                "args": [str], "env": ENV, "resourcesPerNode": RESOURCES}}}  # fmt: skip
CONTAINER = {"name!": str, "image": str, "command": [str], "env": ENV, "resources": RESOURCES,
             "volumeMounts": [{"name!": str, "mountPath!": str}]}  # fmt: skip
VOLUME = {"name!": str, "persistentVolumeClaim": {"claimName!": str}}
POD = {"restartPolicy": str, "terminationGracePeriodSeconds": int, "containers!": [CONTAINER],
       "volumes": [VOLUME]}  # fmt: skip
JOB = {"parallelism": int, "completions": int, "completionMode": str, "backoffLimit": int,
       "template!": {"spec": POD}}  # fmt: skip
JOB_SET = {**HEAD, "spec": {
    "network": {"enableDNSHostnames": bool, "publishNotReadyAddresses": bool},
    "failurePolicy": {"maxRestarts": int},
    "replicatedJobs": [{"name!": str, "replicas": int, "template!": {"spec": JOB}}]}}  # fmt: skip

ASKED = ("--on", "kubernetes", "--dry-run", "--image", "me/train:1", "--nnodes", "2", "-n", "4")
SCRIPT = ("/app/train.py", "--lr", "0.1: 'x'")


def against(value: Any, schema: Any, where: str = "") -> list[str]:
    """What is wrong with a value."""
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where}: {value!r} is no {schema.__name__}"]
    if isinstance(schema, list):
        return [
            bad for i, item in enumerate(value) for bad in against(item, schema[0], f"{where}.{i}")
        ]
    names = {name.rstrip("!"): inner for name, inner in schema.items()}
    found = [
        f"{where}: no {name[:-1]}" for name in schema if name[-1] == "!" and name[:-1] not in value
    ]
    for name, inner in value.items():
        if name not in names and "*" not in names:
            found.append(f"{where}: no such field {name}")
        else:
            found += against(inner, names.get(name, names.get("*")), f"{where}.{name}")
    return found


def read(text: str) -> Any:
    """YAML as our writer has it: blocks by indentation, values in JSON."""
    lines = [(len(line) - len(line.lstrip()), line.lstrip()) for line in text.splitlines()]
    value, rest = _block(lines, 0)
    assert not rest, rest
    return value


def _block(lines: list[tuple[int, str]], depth: int) -> tuple[Any, list[tuple[int, str]]]:
    items: list[Any] = []
    fields: dict[str, Any] = {}
    while lines and lines[0][0] >= depth:
        (indent, text), lines = lines[0], lines[1:]
        assert indent == depth, text
        if text.startswith("- "):
            inside = text[2:]
            if inside.startswith('"'):
                items.append(json.loads(inside))
                continue
            item, lines = _block([(depth + 2, inside), *lines], depth + 2)
            items.append(item)
            continue
        name, _, value = text.partition(":")
        if value:
            fields[name] = json.loads(value)
        else:
            fields[name], lines = _block(lines, depth + 2)
    return items or fields, lines


@pytest.mark.parametrize(
    ("option", "schema"),
    [((), TRAIN_JOB), (("--jobset",), JOB_SET), (("--jobset", "--volume", "mine:/data"), JOB_SET)],
)
def test_manifests_are_what_the_published_schemas_take(
    option: tuple[str, ...], schema: Mapping[str, Any]
) -> None:
    ran = dream("run", *ASKED, *option, "--gpus", "4", "--checkpoint", "/data/a", *SCRIPT)
    assert ran.returncode == 0, ran.stderr
    found = read(ran.stdout)
    assert against(found, schema) == []
    assert found["kind"] == {"trainer.kubeflow.org/v1alpha1": "TrainJob",
                             "jobset.x-k8s.io/v1alpha2": "JobSet"}[found["apiVersion"]]  # fmt: skip
    command = ["dream", "run", "-n", "4", "--checkpoint", "/data/a", *SCRIPT]
    assert json.dumps(command)[1:-1] in json.dumps(found)


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ((), "TrainerV1alpha1TrainJob"),
        (("--gpus", "4", "--max-restarts", "2"), "TrainerV1alpha1TrainJob"),
        (("--jobset",), "JobsetV1alpha2JobSet"),
        (
            ("--jobset", "--gpus", "4", "--volume", "mine:/data", "--max-restarts", "2"),
            "JobsetV1alpha2JobSet",
        ),
    ],
)
def test_kubeflows_own_models_take_the_manifests(options: tuple[str, ...], model: str) -> None:
    """They raise where a type is another or what is required lacks, and drop what they do not
    know."""
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed: make engines"
    )
    ran = dream("run", *ASKED, *options, *SCRIPT)
    assert ran.returncode == 0, ran.stderr
    found = read(ran.stdout)
    taken = getattr(models, model).from_dict(found)
    assert taken.to_dict() == found


def test_a_pod_of_the_job_set_finds_its_place() -> None:
    ran = dream("run", *ASKED, "--jobset", "--master-port", "3000", "--max-restarts", "2", *SCRIPT)
    found = read(ran.stdout)["spec"]
    assert found["failurePolicy"]["maxRestarts"] == 2
    (container,) = found["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["dream", "run", "-n", "4", *SCRIPT]
    assert "volumeMounts" not in container
    environ = {each["name"]: each.get("value", "1") for each in container["env"]}
    place = node_place(environ)
    assert place is not None
    assert (place.node, place.nodes, place.ranks) == (1, 2, 4)
    assert (place.master_addr, place.master_port) == ("train-ranks-0-0.train", 3000)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--jobset", "--volume", "mine:/data", "--checkpoint", "/data/runs/a"), False),
        (("--jobset", "--volume", "mine:/data", "--checkpoint", "/database"), True),
        (("--jobset", "--checkpoint", "/data/runs/a"), True),
        (("--checkpoint", "/data/runs/a"), True),
        (("--jobset", "--volume", "mine:/data"), False),
    ],
)
def test_a_checkpoint_that_ends_with_its_pod_is_said(options: tuple[str, ...], said: bool) -> None:
    ran = dream("run", *ASKED, *options, *SCRIPT)
    assert ran.returncode == 0
    assert ("is on no --volume" in ran.stderr) is said
    if "--volume" not in options:
        return
    (job,) = read(ran.stdout)["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    (volume,), (mount,) = pod["volumes"], pod["containers"][0]["volumeMounts"]
    assert volume["persistentVolumeClaim"] == {"claimName": "mine"}
    assert mount == {"name": volume["name"], "mountPath": "/data"}
    assert "--volume" not in pod["containers"][0]["command"]


def test_no_token_is_in_a_manifest() -> None:
    ran = dream("run", *ASKED, *SCRIPT, env={"DREAM_TOKEN": "a-token-that-nobody-may-see"})
    assert "DREAM_TOKEN" in ran.stdout
    assert "a-token" not in ran.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--image", ""), "needs an image"),
        (("--gpus", "3"), "Each rank needs a GPU of its own"),
        (("--job-name", "7-of-9"), "name starts with a letter"),
        (("--job-name", "My_Job"), "lower-case letters, digits and hyphens"),
        (("--job-name", "mine-"), "does not end with a hyphen"),
        (("--volume", "mine:/data"), "A TrainJob takes its volumes from its runtime"),
        (("--jobset", "--volume", "/data"), "Pass CLAIM:/FOLDER"),
        (("--hosts", "a:4,b:4"), "chooses the hosts"),
        (("--node-rank", "1"), "The engine numbers the hosts"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], words: str) -> None:
    ran = dream("run", *ASKED, *options, *SCRIPT)
    assert ran.returncode == 2
    assert words in ran.stderr


def test_the_schema_can_fail() -> None:
    assert against({"kind": 3}, HEAD) == [
        ": no apiVersion", ": no metadata", ".kind: 3 is no str"
    ]  # fmt: skip
    assert read(yaml({"a": {"b": ["x", {"c": 1, "d": {"e": "f: g"}}]}, "h": True})) == {
        "a": {"b": ["x", {"c": 1, "d": {"e": "f: g"}}]},
        "h": True,
    }
