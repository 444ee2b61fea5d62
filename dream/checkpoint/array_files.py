"""Files of arrays, of the library `safetensors`'s: written, hashed and read."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from dream._errors import ConfigurationError
from dream.checkpoint.content import Arrays, check_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

Told = Mapping[str, Any]
"""What is known of a file that was written: its bytes, and its digest where it is on a disk."""


def write_arrays(path: Path, arrays: Arrays, *, in_memory: bool = False) -> Told:
    """Write a file and bring it to the disk; one in memory is there, and cannot rot."""
    import numpy as np  # on use, as these: `import dream` stays quick
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    # the library writes an array's memory as it lies
    laid = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        save_file(laid, path, metadata={"format": "np"})
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    told: Told = {"bytes": path.stat().st_size}
    return told if in_memory else {**told, "sha256": _flushed(path)}


def _flushed(path: Path) -> str:
    """Bring a file to the disk, and return its digest, which is read meanwhile from the cache."""
    found: list[str] = []
    with path.open("rb") as file:
        reader = threading.Thread(
            target=lambda: found.append(hashlib.file_digest(file, "sha256").hexdigest())
        )
        reader.start()
        try:
            os.fsync(file.fileno())
        finally:
            reader.join()
    return found[0]


def write_text(path: Path, text: bytes, *, in_memory: bool = False) -> Told:
    with path.open("wb") as file:
        file.write(text)
        if not in_memory:
            file.flush()
            os.fsync(file.fileno())
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


@final
class StoredArrays(Mapping[str, "NDArray[Any]"]):
    """Arrays of files, each of which is read when it is looked at.

    stored: by the name here, the open file and the name there.
    """

    def __init__(self, stored: Mapping[str, tuple[Any, str]]) -> None:
        self._stored = stored

    def of(self, prefix: str) -> StoredArrays:
        """Return those whose names begin so, without that."""
        return StoredArrays(
            {n.removeprefix(prefix): at for n, at in self._stored.items() if n.startswith(prefix)}
        )

    def shape(self, name: str) -> tuple[int, ...]:
        file, there = self._stored[name]
        return tuple(file.get_slice(there).get_shape())

    def __getitem__(self, name: str) -> NDArray[Any]:
        file, there = self._stored[name]
        found: NDArray[Any] = file.get_tensor(there)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def read_arrays(place: Path, name: str) -> StoredArrays:
    """Return the arrays of a file, or of those that an index of that name lists."""
    from safetensors import safe_open  # on use: `import dream` stays quick

    index = place / f"{name}.index.json"
    files = [name]
    if index.is_file():
        files = [*dict.fromkeys(json.loads(index.read_text())["weight_map"].values())]
    opened: list[Any] = [safe_open(place / file, framework="numpy") for file in files]
    return StoredArrays({key: (file, key) for file in opened for key in file.keys()})  # noqa: SIM118


def check_arrays(what: str, saved: Arrays, here: Mapping[str, tuple[int, ...]]) -> None:
    """Raise where arrays are not those of the model they are for. here: NAME -> shape."""
    check_names(what, [*saved], [*here])
    for name, shape in here.items():
        found = _shape(saved, name)
        if found != shape:
            raise ConfigurationError(
                f"This checkpoint is of other {what}. Received: {name!r} of shape {found} in it, "
                f"{shape} here. Make them as they were when it was saved."
            )


def _shape(arrays: Arrays, name: str) -> tuple[int, ...]:
    if isinstance(arrays, StoredArrays):
        return arrays.shape(name)
    return tuple(arrays[name].shape)


def check_file(path: Path, told: Told) -> None:
    """Raise where a file is not the one that was written."""
    if not path.is_file():
        raise damaged(path, "it is not there")
    if path.stat().st_size != told["bytes"]:
        raise damaged(path, f"{path.stat().st_size} bytes, {told['bytes']} were written")
    if "sha256" not in told:
        return
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != told["sha256"]:
            raise damaged(path, "its digest is another")


def damaged(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"A checkpoint's file is not the one that was written. Received: {path}: {why}. Remove "
        f"its folder, and the one before it is taken."
    )
