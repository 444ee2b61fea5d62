"""A folder of checkpoints, each whole or not there.

    runs/a/step-000000100/model.safetensors      under the model's own names
                          optimizer.safetensors  PARAMETER/SLOT
                          state.json             everything else, and each file's size and digest
                          COMMITTED              the digest of state.json, written last
    runs/a/latest                                the name of the newest

A checkpoint is written beside its place, every file and folder brought to the disk, and takes its
place by a rename; then the pointer is replaced. What was there before stays whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dream._errors import ConfigurationError, DreamError
from dream.checkpoint.content import (
    Arrays,
    CheckpointContent,
    OptimizerState,
    Replicas,
    named_in,
)
from dream.checkpoint.storage.allotment import LARGEST, Allotment
from dream.checkpoint.storage.array_files import (
    Told,
    check_file,
    damaged,
    read_arrays,
    write_arrays,
    write_text,
)
from dream.checkpoint.storage.words import from_json, to_json
from dream.files.room import check_room
from dream.files.whole import settle_folder, write_whole

FORMAT = 1
MODEL, OPTIMIZER, REPLICAS, STATE, COMMITTED = (
    "model.safetensors",
    "optimizer.safetensors",
    "replicas.safetensors",
    "state.json",
    "COMMITTED",
)
LATEST = "latest"
_PLAIN = ("schedulers", "data", "random", "extra", "facts", "layers", "dtypes", "runs")
_STEP = re.compile(r"step-(\d{9,})(?:\.(\d+))?")
_PART = ".part-"


@final
@dataclass(frozen=True, slots=True)
class Begun:
    """A checkpoint that is being written. part: where to. place: where it will be."""

    part: Path
    place: Path


@final
class CheckpointFolder:
    """A folder of checkpoints, a subfolder each, and which of them stay.

    keep: how many of the newest stay. best: a name in `extra` whose smallest value stays too.
    in_memory: whether it lies in memory, where there is nothing to flush, and no pointer.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, keep: int = 3, best: str | None = None,
        largest: int = LARGEST, in_memory: bool = False,
    ) -> None:  # fmt: skip
        if keep < 1:
            raise ConfigurationError(
                f"At least one checkpoint must be kept. Received: keep={keep}. Give 1 or more."
            )
        self.path = Path(path).absolute()  # as it is now: it may be written to later
        self._keep, self._best, self._largest = keep, best, largest
        self._in_memory = in_memory

    def save(self, checkpoint: CheckpointContent) -> Path:
        """Write one, and let go of those that are too many. DreamError where the disk refuses: the
        newest one is then as it was."""
        allotment = Allotment(largest=self._largest)
        kinds = arrays_of(checkpoint)
        for kind, arrays in kinds.items():
            for name, array in arrays.items():
                allotment.takes(kind, name, array.nbytes)
        state = state_of(checkpoint)
        begun = self.begin(checkpoint.step)
        with self.writing(begun):
            files = self.write(begun, allotment, kinds)
            self.commit(begun, allotment, state, files)
        return begun.place

    def begin(self, step: int) -> Begun:
        """Make the folder that one is written into."""
        place = self._free_place(step)
        part = self._new_part()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.clear_parts()
            part.mkdir()
        except OSError as error:
            raise not_written(place, error) from error
        return Begun(part, place)

    @contextmanager
    def writing(self, begun: Begun) -> Iterator[None]:
        """Leave nothing where it is not committed, and say what the disk refused."""
        try:
            yield
        except OSError as error:
            raise not_written(begun.place, error) from error
        finally:
            shutil.rmtree(begun.part, ignore_errors=True)

    def begin_alike(self, step: int, number: int) -> Begun:
        """Name the folder that one is written into, as each rank knows it by itself. Who writes
        makes it: a rank that does not may come when it is in its place. number: of those that the
        ranks have begun so."""
        return Begun(self.path / f"{_PART}{step}-{number}", self._free_place(step))

    def write(
        self, begun: Begun, allotment: Allotment, kinds: Mapping[str, Arrays]
    ) -> dict[str, Told]:
        """Write this rank's files, and return what is to be known of them. kinds: what each kind of
        file holds."""
        if self._in_memory:
            check_room(self.path, allotment.size)  # the one before stays until this one is whole
        begun.part.mkdir(exist_ok=True)
        return {
            name: write_arrays(begun.part / name, arrays, in_memory=self._in_memory)
            for kind, held in kinds.items()
            for name, arrays in allotment.own(kind, held)
        }

    def commit(
        self, begun: Begun, allotment: Allotment, state: Mapping[str, Any],
        files: Mapping[str, Told],
    ) -> None:  # fmt: skip
        """Put one in its place, all of whose files are written."""
        kinds = (MODEL, OPTIMIZER, *([REPLICAS] if state["replicas"] else ()))
        missing = allotment.names(kinds) - files.keys()
        if missing:
            raise DreamError(
                "The checkpoint was not written; earlier checkpoints are unchanged. Received: "
                f"{begun.place}, and nothing of {', '.join(sorted(missing))}. Report this, with "
                "the names and sizes of the model's arrays."
            )
        told = {**files, **self._write_indexes(begun, allotment, kinds)}
        text = json.dumps({**state, "files": told}, indent=1, allow_nan=False).encode()
        digest = hashlib.sha256(text).hexdigest().encode()
        write_text(begun.part / STATE, text, in_memory=self._in_memory)
        write_text(begun.part / COMMITTED, digest, in_memory=self._in_memory)
        if self._in_memory:
            begun.part.rename(begun.place)
        else:
            settle_folder(begun.part)
            begun.part.rename(begun.place)
            settle_folder(self.path)
            write_whole(self.path / LATEST, lambda file: file.write(begun.place.name.encode()))
        self._let_go()

    def newest(self) -> Path | None:
        """Return the newest whole one: the pointer's, or where that is gone, the one with the most
        steps. None where there is none. ConfigurationError for what is no folder of checkpoints."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(
                f"Checkpoints need a folder. Received: {self.path}, a file. Name a folder."
            )
        whole, every = self.whole(), self.all()
        if every and not whole:
            raise ConfigurationError(
                f"No checkpoint here is complete. Received: {every[-1]}, without {COMMITTED}: it "
                "is still being copied, or writing it was interrupted. Wait for the copy, or "
                "remove it to start over."
            )
        pointer = self.path / LATEST
        if pointer.is_file():
            named = self.path / pointer.read_text(encoding="utf-8").strip()
            if named in whole:
                return named
        return whole[-1] if whole else None

    def load(self, place: Path) -> CheckpointContent:
        """Check all of one, and read it. ConfigurationError where its files are not those that were
        written, or it is of a newer format."""
        return self.read(place, self.check(place))

    @staticmethod
    def read(place: Path, state: Mapping[str, Any]) -> CheckpointContent:
        """Return one that was checked. An array is read when it is looked at."""
        read = read_arrays(place, MODEL), read_arrays(place, OPTIMIZER)
        models, slots = (
            {name: arrays.of(named_in(name, "")) for name in state[kind]}
            for arrays, kind in zip(read, ("models", "optimizers"), strict=True)
        )
        optimizers = {
            name: OptimizerState(
                told["kind"], slots[name], from_json(told["numbers"]), from_json(told["groups"])
            )
            for name, told in state["optimizers"].items()
        }
        replicas = from_json(state.get("replicas"))
        if replicas:
            replicas = Replicas(**replicas, arrays=read_arrays(place, REPLICAS))
        return CheckpointContent(
            step=state["step"], models=models, optimizers=optimizers, replicas=replicas,
            **{key: from_json(state[key]) for key in _PLAIN if key in state},
        )  # fmt: skip

    def check(self, place: Path, rank: int = 0, ranks: int = 1) -> dict[str, Any]:
        """Read every byte of one, and return its state; of several ranks, each looks at its files.
        ConfigurationError names the file that is not the one that was written."""
        state = self.state(place)
        if state.get("format") != FORMAT:
            raise ConfigurationError(
                f"This checkpoint has another format. Received: {place}, format "
                f"{state.get('format')!r}; this dream reads {FORMAT}. Read it with the dream that "
                f"wrote it ({state.get('dream', 'unknown')})."
            )
        for name, told in [*state["files"].items()][rank::ranks]:
            check_file(place / name, told)
        return state

    def all(self) -> list[Path]:
        """Return all that have a checkpoint's name, whole or not, fewest steps first."""
        found = self.path.iterdir() if self.path.is_dir() else iter(())
        return sorted((path for path in found if _STEP.fullmatch(path.name)), key=order)

    def _write_indexes(
        self, begun: Begun, allotment: Allotment, kinds: Sequence[str]
    ) -> dict[str, Told]:
        """Write where each array is, as others read it too, for kinds of several files."""
        told = {}
        for kind in kinds:
            found = allotment.index(kind)
            if found is not None:
                index = {"metadata": {"total_size": found[0]}, "weight_map": found[1]}
                name = f"{kind}.index.json"
                text = json.dumps(index, indent=1).encode()
                told[name] = write_text(begun.part / name, text, in_memory=self._in_memory)
        return told

    def place_of(self, step: int) -> Path:
        """Name the place of a checkpoint of so many steps."""
        return self.path / f"step-{step:09d}"

    def _free_place(self, step: int) -> Path:
        """Choose a name that no checkpoint has: one of the same step stays until this is whole."""
        place, again = self.place_of(step), 0
        while place.exists():
            again += 1
            place = self.path / f"step-{step:09d}.{again}"
        return place

    def _new_part(self) -> Path:
        return self.path / f"{_PART}{secrets.token_hex(8)}"

    def clear_parts(self) -> None:
        """Remove what writers have left that were ended: a half checkpoint, or a half pointer."""
        for left in self.path.glob(f"{_PART}*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def whole(self) -> list[Path]:
        """Those that are whole, fewest steps first."""
        return [place for place in self.all() if (place / COMMITTED).is_file()]

    def _let_go(self) -> None:
        whole = self.whole()
        of_steps = {place.name.partition(".")[0]: place for place in whole}  # the last of each
        stay = {*[*of_steps.values()][-self._keep :], self.newest()}
        if self._best is not None:
            stay.add(min(whole, key=self._figure, default=None))
        for place in whole:
            if place not in stay:
                gone = self._new_part()
                place.rename(gone)  # first: half of one has no checkpoint's name
                shutil.rmtree(gone, ignore_errors=True)

    def _figure(self, place: Path) -> float:
        value = from_json(self.state(place)["extra"]).get(self._best)
        return float("inf") if value is None else float(value)

    def state(self, place: Path) -> dict[str, Any]:
        """Read what one says of itself."""
        try:
            text = (place / STATE).read_bytes()
            committed = (place / COMMITTED).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(
                f"This is not a complete checkpoint. Received: {place} ({error.strerror}). Pass a "
                "folder that save has written."
            ) from error
        if hashlib.sha256(text).hexdigest() != committed:
            raise damaged(place / STATE, "its digest is another")
        state: dict[str, Any] = json.loads(text)
        return state


def order(place: Path) -> tuple[int, int]:
    """Return by which a checkpoint of that name comes before others: its step, and which of that
    step's it is."""
    named = _STEP.fullmatch(place.name)
    return (int(named[1]), int(named[2] or 0)) if named else (-1, 0)


def state_of(checkpoint: CheckpointContent) -> dict[str, Any]:
    """Return all of a checkpoint but its arrays and files, as JSON has it. Unsupported for what is
    no plain value."""
    return {
        "format": FORMAT,
        "step": checkpoint.step,
        "models": [*checkpoint.models],
        "optimizers": {
            name: {
                "kind": each.kind,
                "numbers": to_json(dict(each.numbers), "optimizer"),
                "groups": to_json([dict(group) for group in each.groups], "optimizer.groups"),
            }
            for name, each in checkpoint.optimizers.items()
        },
        **{name: to_json(getattr(checkpoint, name), name) for name in _PLAIN},
        "replicas": checkpoint.replicas and {
            "count": checkpoint.replicas.count,
            "schedule": to_json(checkpoint.replicas.schedule, "replicas"),
            "random": to_json(list(checkpoint.replicas.random), "random"),
        },
    }  # fmt: skip


def arrays_of(checkpoint: CheckpointContent) -> dict[str, Arrays]:
    """Return by kind of file the arrays of its models, of its optimizers, and of its replicas where
    they have any. The names of one model are its own; several have theirs before them."""
    slots = {name: each.arrays for name, each in checkpoint.optimizers.items()}
    found: dict[str, Arrays] = {MODEL: _joined(checkpoint.models), OPTIMIZER: _joined(slots)}
    replicas = checkpoint.replicas
    return found if replicas is None else {**found, REPLICAS: replicas.arrays}


def _joined(parts: Mapping[str, Arrays]) -> dict[str, Any]:
    return {
        named_in(name, key): array
        for name, arrays in parts.items()
        for key, array in arrays.items()
    }


def not_written(place: Path, error: OSError) -> DreamError:
    """Say what the disk refused."""
    room, do = "", "Name a folder that every rank may write to, and all hosts have."
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        disk = shutil.disk_usage(place.parent)
        room = f", a disk of {disk.total >> 20} MB with {disk.free >> 20} MB free"
        do = "Free some space, or choose another folder."
    return DreamError(
        f"The checkpoint was not written; earlier checkpoints are unchanged. Received: {place} "
        f"({error.strerror or error}){room}. {do}"
    )
