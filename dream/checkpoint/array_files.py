"""Files of arrays, as the library `safetensors` reads them: written and hashed in one go."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dream._errors import ConfigurationError, Unsupported
from dream.checkpoint.content import Arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

Told = Mapping[str, Any]
"""What is known of a file that was written: its bytes and its digest."""

Bytes = bytes | memoryview
_METADATA = "__metadata__"
_CHUNK = 8 << 20
_ALIGNED = 8
_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def write_arrays(path: Path, arrays: Arrays) -> Told:
    """Write a file and bring it to the disk; its digest is taken meanwhile."""
    parts = _laid_out(arrays)
    with ThreadPoolExecutor(1) as beside:
        digest = beside.submit(_digest, parts)
        with path.open("wb", buffering=0) as file:
            for part in parts:
                _write_all(file.fileno(), part)
            os.fsync(file.fileno())
        size = sum(len(part) for part in parts)
        return {"bytes": size, "sha256": digest.result()}


def write_text(path: Path, text: bytes) -> Told:
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def read_arrays(place: Path, name: str) -> dict[str, Any]:
    """Return the arrays of a file, or of those that an index of that name lists: views, of which no
    more is read than is looked at."""
    index = place / f"{name}.index.json"
    files = [name]
    if index.is_file():
        files = [*dict.fromkeys(json.loads(index.read_text())["weight_map"].values())]
    return {key: array for file in files for key, array in _mapped(place / file).items()}


def _mapped(path: Path) -> dict[str, NDArray[Any]]:
    import numpy as np

    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(start - 8))
        # a copy of its own: others take only arrays that can be written to
        data = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
    header.pop(_METADATA, None)
    found = {}
    for name, told in header.items():
        begin, end = told["data_offsets"]
        numbers = data[start + begin : start + end].view(_numpy_dtype(told["dtype"]))
        found[name] = numbers.reshape(told["shape"])
    return found


def _numpy_dtype(word: str) -> Any:
    import numpy as np

    name = next(name for name, each in _DTYPES.items() if each == word)
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes  # noqa: F401 - it has NumPy know them
    return np.dtype(name)


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


def _laid_out(arrays: Arrays) -> list[Bytes]:
    """Return the header and the bytes of the arrays, the widest numbers first: each lies at a
    multiple of its size then."""
    header: dict[str, Any] = {_METADATA: {"format": "np"}}
    parts: list[Bytes] = []
    end = 0
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": _dtype(name, array),
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        parts.append(_bytes_of(array))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return [len(text).to_bytes(8, "little") + text, *parts]


def _dtype(name: str, array: NDArray[Any]) -> str:
    found = _DTYPES.get(array.dtype.name)
    if found is None:
        raise Unsupported(
            f"A checkpoint holds numbers. Received: {name!r}, an array of {array.dtype}. Make it "
            "an array of floats, integers or booleans."
        )
    return found


def _bytes_of(array: NDArray[Any]) -> Bytes:
    import numpy as np

    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def _digest(parts: list[Bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _write_all(file: int, part: Bytes) -> None:
    left = memoryview(part)
    while left:
        left = left[os.write(file, left[:_CHUNK]) :]
