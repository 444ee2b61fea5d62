"""Runs of wandb and mlflow that every rank of a script begins: one run a job, rank 0's.

Other ranks get what takes the same calls: of wandb its own run that does nothing, of mlflow a store
in a folder that goes when the rank ends. mlflow's stays after the block, since runs do.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any, final

from dream._errors import Unsupported
from dream._framework import ImportWatch
from dream._log import logger
from dream._patches import Patches
from dream.cluster.settings import variable_set
from dream.files import saves

_WANDB, _MLFLOW = "wandb", "mlflow"
_READS = ("get_", "search_", "list_", "load_")
_FILES_ALLOWED = "MLFLOW_ALLOW_FILE_STORE", "true"
_SERVERS = "http", "databricks", "uc:"
_STORES = (
    ("tracking._tracking_service", "TrackingStoreRegistry", "store.tracking"),
    ("tracking._model_registry", "ModelRegistryStoreRegistry", "store.model_registry"),
)
"""Where mlflow keeps its stores, who gives them out, and where its stores of files are."""


@final
class Runs:
    """Keeps ranks other than 0 from beginning runs, while a block is open."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._watches: list[ImportWatch] = []

    def begin(self) -> None:
        for library, change in ((_WANDB, self._silence_wandb), (_MLFLOW, _set_mlflow_aside)):
            self._watches.append(ImportWatch(change, (library,)))
            self._watches[-1].start()

    def end(self) -> None:
        """What was begun in the block stays as it is."""
        for watch in self._watches:
            watch.remove()
        self._patches.restore()
        self._watches = []

    def _silence_wandb(self) -> None:
        wandb = sys.modules[_WANDB]
        if getattr(wandb, "run", None) is not None:
            logger.warning(
                "wandb.init was called before the block, so every rank has its own run: call it in "
                "the block, or only on rank 0"
            )
        init = wandb.init

        @wraps(init)
        def silent(*args: Any, **kwargs: Any) -> Any:
            return init(*args, **{**kwargs, "mode": "disabled"})

        self._patches.replace_bound(wandb, "init", silent, _WANDB)
        add = _after_rank_0(wandb.Artifact.add_file)
        self._patches.replace(wandb.Artifact, "add_file", add)
        for name in ("agent", "sweep"):
            self._patches.replace_bound(wandb, name, _refused(name), _WANDB)


@cache
def _set_mlflow_aside() -> None:
    """Once a process, for good."""
    if sys.modules[_MLFLOW].active_run() is not None:
        logger.warning(
            "mlflow.start_run was called before the block, so every rank has its own run, and only "
            "rank 0's continues: call it in the block, or only on rank 0"
        )
    folder = tempfile.TemporaryDirectory(prefix="dream-mlflow-")
    for home, registry, files in _STORES:
        kind = getattr(sys.modules[f"mlflow.{home}.registry"], registry)
        kind.get_store = _aside(kind.get_store, f"mlflow.{files}.file_store", folder)
    client = sys.modules["mlflow.tracking._tracking_service.client"].TrackingServiceClient
    client.log_artifact = _where_there(client.log_artifact)
    client.log_artifacts = _where_there(client.log_artifacts)


def _refused(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise Unsupported(
            "Each rank would be given hyperparameters of its own by a sweep. Received: "
            f"wandb.{name} in the block. Have the sweep's agent start the job, by a line of its "
            "configuration: command: [dream, run, -n, 2, ${program}, ${args}]."
        )

    return refused


def _after_rank_0(take: Callable[..., Any]) -> Callable[..., Any]:
    """Return what takes a file that rank 0 saves once it is there."""

    @wraps(take)
    def taken(owner: Any, local_path: Any, *args: Any, **kwargs: Any) -> Any:
        saves.here().before_reading(local_path)
        return take(owner, local_path, *args, **kwargs)

    return taken


def _where_there(log: Callable[..., Any]) -> Callable[..., None]:
    """Return what logs the files that are there; a script may write some on rank 0 alone."""

    @wraps(log)
    def logged(client: Any, run_id: Any, local_path: Any, *args: Any, **kwargs: Any) -> None:
        saves.here().before_reading(local_path)
        if Path(local_path).exists():
            log(client, run_id, local_path, *args, **kwargs)

    return logged


def _aside(
    get_store: Callable[..., Any], module: str, folder: tempfile.TemporaryDirectory[str]
) -> Callable[..., Any]:
    """Return what stands for a registry's `get_store`. folder: kept as long as it is."""

    @cache
    def own() -> Any:
        from importlib import import_module

        with variable_set(*_FILES_ALLOWED):
            return import_module(module).FileStore(str(Path(folder.name).absolute()))

    @wraps(get_store)
    def get(registry: Any, store_uri: str | None = None, *args: Any, **kwargs: Any) -> AsideStore:
        def jobs() -> Any:
            return get_store(registry, store_uri, *args, **kwargs)

        where = store_uri or sys.modules[_MLFLOW].get_tracking_uri()
        return AsideStore(own(), jobs, remote=where.startswith(_SERVERS))

    return get


@final
class AsideStore:
    """Keeps what is written, and answers for what it does not hold from the job's store, into which
    nothing is written: what belongs to a run of that is left out.

    jobs: opens that, when it is first asked: two ranks that make one database at a time break it.
    remote: whether that is a server.
    """

    def __init__(self, own: Any, jobs: Callable[[], Any], *, remote: bool) -> None:
        self._own, self._jobs = own, jobs
        self._drawing = _undrawn if remote else nullcontext

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._own, name)
        if not callable(own):
            return own

        @wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                with self._drawing(), variable_set(*_FILES_ALLOWED):
                    return own(*args, **kwargs)
            except Exception as error:
                if getattr(error, "error_code", "") != "RESOURCE_DOES_NOT_EXIST":
                    raise
                return self._elsewhere(name, args, kwargs)

        return call

    def _elsewhere(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of an experiment or a run that the job's store holds, or nobody."""
        if name in ("create_run", "create_logged_model"):
            create = getattr(self._own, name)
            return create(**self._own_experiment(create, args, kwargs))
        if name.startswith(_READS):
            return getattr(self._jobs(), name)(*args, **kwargs)
        return None

    def _own_experiment(
        self, create: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """The arguments of a run or a model, for an experiment of this store."""
        given = signature(create).bind(*args, **kwargs).arguments
        name = f"of the job: {given['experiment_id']}"
        found = self._own.get_experiment_by_name(name)
        own = self._own.create_experiment(name) if found is None else found.experiment_id
        return {**given, "experiment_id": own}


@contextmanager
def _undrawn() -> Iterator[None]:
    """A server draws the names of runs itself, so on rank 0 no generator of Python's moves."""
    state = random.getstate()
    yield
    random.setstate(state)
