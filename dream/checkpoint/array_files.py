"""Files of arrays, of the library `safetensors`'s: written, hashed and read."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from dream._errors import ConfigurationError
from dream.checkpoint.content import Arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

Told = Mapping[str, Any]
"""What is known of a file that was written: its bytes and its digest."""


def write_arrays(path: Path, arrays: Arrays) -> Told:
    """Write a file and bring it to the disk; its digest is taken meanwhile."""
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
    with path.open("rb") as file, ThreadPoolExecutor(1) as beside:
        digest = beside.submit(hashlib.file_digest, file, "sha256")
        os.fsync(file.fileno())
        return {"bytes": path.stat().st_size, "sha256": digest.result().hexdigest()}


def write_text(path: Path, text: bytes) -> Told:
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def read_arrays(place: Path, name: str) -> Arrays:
    """Return the arrays of a file, or of those that an index of that name lists; each is read when
    it is looked at."""
    from safetensors import safe_open

    index = place / f"{name}.index.json"
    files = [name]
    if index.is_file():
        files = [*dict.fromkeys(json.loads(index.read_text())["weight_map"].values())]
    opened: list[Any] = [safe_open(place / file, framework="numpy") for file in files]
    return _Opened({key: file for file in opened for key in file.keys()})  # noqa: SIM118


@final
class _Opened(Mapping[str, "NDArray[Any]"]):
    """files: the open one that has an array, by the array's name."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self._files[name].get_tensor(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def check_file(path: Path, told: Told) -> None:
    """Raise where a file is not the one that was written."""
    if not path.is_file():
        raise damaged(path, "it is not there")
    if path.stat().st_size != told["bytes"]:
        raise damaged(path, f"{path.stat().st_size} bytes, {told['bytes']} were written")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != told["sha256"]:
            raise damaged(path, "its digest is another")


def damaged(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"A checkpoint's file is not the one that was written. Received: {path}: {why}. Remove "
        f"its folder, and the one before it is taken."
    )
