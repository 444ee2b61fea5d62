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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from dream._errors import ConfigurationError, DreamError
from dream.checkpoint.content import Arrays, Checkpoint, OptimizerState, named_in
from dream.checkpoint.words import from_json, to_json
from dream.files.whole import settle_folder, write_whole

FORMAT = 1
MODEL, OPTIMIZER, STATE, COMMITTED = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "COMMITTED",
)
LATEST = "latest"
_PLAIN = ("schedulers", "data", "random", "extra", "facts", "layers")
_LARGEST = 5 << 30
_STEP = re.compile(r"step-(\d{9,})(?:\.(\d+))?")
_PART = ".part-"


@final
class CheckpointFolder:
    """keep: how many of the newest stay. best: a name in `extra` whose smallest value stays too."""

    def __init__(
        self, path: str | os.PathLike[str], *, keep: int = 3, best: str | None = None,
        largest: int = _LARGEST,
    ) -> None:  # fmt: skip
        if keep < 1:
            raise ConfigurationError(
                f"At least one checkpoint is kept. Received: keep={keep}. Give 1 or more."
            )
        self.path = Path(path)
        self._keep, self._best, self._largest = keep, best, largest

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write one, and let go of those that are too many. DreamError where the disk refuses: the
        newest one is then as it was."""
        place = self._free_place(checkpoint.step)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._clear_parts()
            with self._part() as part:
                self._write(part, checkpoint)
                part.rename(place)
                settle_folder(self.path)
            write_whole(self.path / LATEST, lambda file: file.write(place.name.encode()))
        except OSError as error:
            raise _not_written(place, error) from error
        self._let_go()
        return place

    def newest(self) -> Path | None:
        """Return the newest whole one: the pointer's, or where that is gone, the one with the most
        steps. None where there is none. ConfigurationError for what is no folder of checkpoints."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(
                f"Checkpoints are kept in a folder. Received: {self.path}, a file. Name a folder."
            )
        whole, every = self.whole(), self.all()
        if every and not whole:
            raise ConfigurationError(
                f"No checkpoint here is whole. Received: {every[-1]}, without {COMMITTED}: it is "
                "being copied, or was left half. Wait for the copy, or remove it to begin anew."
            )
        pointer = self.path / LATEST
        if pointer.is_file():
            named = self.path / pointer.read_text(encoding="utf-8").strip()
            if named in whole:
                return named
        return whole[-1] if whole else None

    def load(self, place: Path) -> Checkpoint:
        """Read one, whole. ConfigurationError where its files are not those that were written, or
        it is of a newer format."""
        state = self.check(place)
        read = _tensors(place, MODEL), _tensors(place, OPTIMIZER)
        models, slots = ({name: _of(arrays, name) for name in state[kind]} for arrays, kind in
                         zip(read, ("models", "optimizers"), strict=True))  # fmt: skip
        optimizers = {
            name: OptimizerState(
                told["kind"], slots[name], from_json(told["numbers"]), from_json(told["groups"])
            )
            for name, told in state["optimizers"].items()
        }
        return Checkpoint(
            step=state["step"], models=models, optimizers=optimizers,
            **{key: from_json(state[key]) for key in _PLAIN if key in state},
        )  # fmt: skip

    def check(self, place: Path) -> dict[str, Any]:
        """Read every byte of one, and return its state. ConfigurationError names the file that is
        not the one that was written."""
        state = self.state(place)
        if state.get("format") != FORMAT:
            raise ConfigurationError(
                f"This checkpoint is of another format. Received: {place}, format "
                f"{state.get('format')!r}; this dream reads {FORMAT}. Read it with the dream that "
                f"wrote it ({state.get('dream', 'unknown')})."
            )
        for name, told in state["files"].items():
            _check_file(place / name, told)
        return state

    def all(self) -> list[Path]:
        """Return all that have a checkpoint's name, whole or not, fewest steps first."""
        found = self.path.iterdir() if self.path.is_dir() else iter(())
        steps = [(int(m[1]), int(m[2] or 0), p) for p in found if (m := _STEP.fullmatch(p.name))]
        return [path for _, _, path in sorted(steps)]

    def _write(self, part: Path, checkpoint: Checkpoint) -> None:
        files = self._write_tensors(part, MODEL, _joined(checkpoint.models))
        slots = {name: each.arrays for name, each in checkpoint.optimizers.items()}
        files += self._write_tensors(part, OPTIMIZER, _joined(slots))
        state = {
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
            **{name: to_json(getattr(checkpoint, name), name) for name in
               _PLAIN},
            "files": {name: _told(part / name) for name in files},
        }  # fmt: skip
        text = json.dumps(state, indent=1, allow_nan=False).encode()
        _write_file(part / STATE, text)
        _write_file(part / COMMITTED, hashlib.sha256(text).hexdigest().encode())
        settle_folder(part)

    def _write_tensors(self, part: Path, name: str, arrays: Arrays) -> list[str]:
        """Write one file; past 5 GB several and an index, as others read them too."""
        runs = _runs(arrays, self._largest)
        if len(runs) == 1:
            _write_safetensors(part / name, runs[0])
            return [name]
        stem = name.removesuffix(".safetensors")
        index: dict[str, str] = {}
        for place, run in enumerate(runs, 1):
            file = f"{stem}-{place:05d}-of-{len(runs):05d}.safetensors"
            _write_safetensors(part / file, run)
            index |= dict.fromkeys(run, file)
        total = sum(array.nbytes for array in arrays.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1)
        _write_file(part / f"{name}.index.json", text.encode())
        return [*dict.fromkeys(index.values()), f"{name}.index.json"]

    def _free_place(self, step: int) -> Path:
        """Choose a name that no checkpoint has: one of the same step stays until this is whole."""
        place = self.path / f"step-{step:09d}"
        again = 0
        while place.exists():
            again += 1
            place = self.path / f"step-{step:09d}.{again}"
        return place

    @contextmanager
    def _part(self) -> Iterator[Path]:
        part = self.path / f"{_PART}{secrets.token_hex(8)}"
        part.mkdir()
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _clear_parts(self) -> None:
        """What writers have left that were ended: a half checkpoint, or a half pointer."""
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
                (place / COMMITTED).unlink(missing_ok=True)  # first: half of one is none
                shutil.rmtree(place, ignore_errors=True)

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
                f"This is no whole checkpoint. Received: {place} ({error.strerror}). Name a folder "
                "that save has written."
            ) from error
        if hashlib.sha256(text).hexdigest() != committed:
            raise _damaged(place / STATE, "its digest is another")
        state: dict[str, Any] = json.loads(text)
        return state


def _joined(parts: Mapping[str, Arrays]) -> dict[str, Any]:
    """The names of one model are its own; several have theirs before them."""
    return {
        named_in(name, key): array
        for name, arrays in parts.items()
        for key, array in arrays.items()
    }


def _of(arrays: Arrays, name: str) -> dict[str, Any]:
    if not name:
        return dict(arrays)
    return {k.removeprefix(f"{name}."): v for k, v in arrays.items() if k.startswith(f"{name}.")}


def _runs(arrays: Arrays, largest: int) -> list[dict[str, Any]]:
    """The arrays in order, cut where a file would be too large."""
    runs: list[dict[str, Any]] = [{}]
    size = 0
    for name, array in arrays.items():
        if runs[-1] and size + array.nbytes > largest:
            runs.append({})
            size = 0
        runs[-1][name] = array
        size += array.nbytes
    return runs


def _tensors(place: Path, name: str) -> dict[str, Any]:
    from safetensors.numpy import load_file

    index = place / f"{name}.index.json"
    files = [name]
    if index.is_file():
        files = [*dict.fromkeys(json.loads(index.read_text())["weight_map"].values())]
    return {key: array for file in files for key, array in load_file(place / file).items()}


def _told(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _check_file(path: Path, told: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise _damaged(path, "it is not there")
    if path.stat().st_size != told["bytes"]:
        raise _damaged(path, f"{path.stat().st_size} bytes, {told['bytes']} were written")
    if _told(path)["sha256"] != told["sha256"]:
        raise _damaged(path, "its digest is another")


def _damaged(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"A checkpoint's file is not the one that was written. Received: {path}: {why}. Remove "
        f"its folder, and the one before it is taken."
    )


def _write_safetensors(path: Path, arrays: Arrays) -> None:
    from safetensors import SafetensorError  # on use: `import dream` stays quick
    from safetensors.numpy import save_file

    try:
        save_file(dict(arrays), path, metadata={"format": "np"})
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    _settle(path)


def _write_file(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    _settle(path)


def _settle(path: Path) -> None:
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _not_written(place: Path, error: OSError) -> DreamError:
    room = ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        disk = shutil.disk_usage(place.parent)
        room = f", a disk of {disk.total >> 20} MB with {disk.free >> 20} MB free"
    return DreamError(
        f"The checkpoint was not written, and those before it are as they were. Received: {place} "
        f"({error.strerror or error}){room}. Make room, or name another folder."
    )
