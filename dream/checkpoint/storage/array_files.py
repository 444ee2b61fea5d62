"""Files of arrays, as the library `safetensors` has them: written and hashed in one go, and read
whole or in part."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from dream._errors import ConfigurationError
from dream.checkpoint.content import Arrays, check_names

if TYPE_CHECKING:
    from numpy.typing import NDArray

Told = Mapping[str, Any]
"""What is known of a file that was written: its bytes, and its digest where it is on a disk."""
Cut = tuple[slice, ...]
_PIECE = 8 << 20
"""Bytes that are given to the disk at a time."""
_TYPES = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4",
    "I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
    "C64": "<c8",
}  # fmt: skip
_NAMES = {kind: name for name, kind in _TYPES.items()}
_BF16 = "BF16"


def write_arrays(path: Path, arrays: Arrays, *, in_memory: bool = False) -> Told:
    """Write a file, hash it meanwhile, and bring it to the disk; one in memory is there, and cannot
    rot."""
    import numpy as np  # on use: `import dream` stays quick

    laid = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    names = sorted(laid, key=lambda name: (-laid[name].itemsize, name))
    header = _header({name: laid[name] for name in names})
    pieces = [memoryview(header)]
    for name in names:
        data = laid[name].reshape(-1).view(np.uint8).data
        pieces += [data[at : at + _PIECE] for at in range(0, len(data), _PIECE)]
    told: Told = {"bytes": sum(map(len, pieces))}
    try:
        with path.open("wb", buffering=0) as file:
            if in_memory:
                for piece in pieces:
                    _write_out(file.fileno(), piece)
                return told
            return {**told, "sha256": _flush(file.fileno(), pieces)}
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


def _flush(file: int, pieces: Sequence[memoryview]) -> str:
    """Bring pieces to the disk, and return their digest, which is made meanwhile."""
    digest = hashlib.sha256()
    hasher = threading.Thread(target=_hash, args=(digest, pieces))
    hasher.start()
    try:
        for piece in pieces:
            begun = os.lseek(file, 0, os.SEEK_CUR)
            _write_out(file, piece)
            end = os.lseek(file, 0, os.SEEK_CUR)
            if hasattr(os, "posix_fadvise"):  # the disk begins with it now, not when all is written
                os.posix_fadvise(file, begun, end - begun, os.POSIX_FADV_DONTNEED)
        os.fsync(file)
    finally:
        hasher.join()
    return digest.hexdigest()


def _hash(digest: Any, pieces: Sequence[memoryview]) -> None:
    for piece in pieces:
        digest.update(piece)


def _write_out(file: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(file, piece) :]


def _header(laid: Arrays) -> bytes:
    told: dict[str, Any] = {"__metadata__": {"format": "np"}}
    end = 0
    for name, array in laid.items():
        begin, end = end, end + array.nbytes
        kind = _type_of(name, array)
        told[name] = {"dtype": kind, "shape": [*array.shape], "data_offsets": [begin, end]}
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _type_of(name: str, array: NDArray[Any]) -> str:
    dtype: Any = array.dtype
    if dtype.names == ("bfloat16",) or dtype.name == "bfloat16":  # ours, or another package's
        return _BF16
    if dtype.str not in _NAMES:
        raise ConfigurationError(
            f"A checkpoint cannot store this data type. Received: {name!r}, an array of "
            f"{dtype.name}. Keep it out of the model's state, or convert it to another type."
        )
    return _NAMES[dtype.str]


def write_text(path: Path, text: bytes, *, in_memory: bool = False) -> Told:
    with path.open("wb") as file:
        file.write(text)
        if not in_memory:
            file.flush()
            os.fsync(file.fileno())
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


@final
@dataclass(frozen=True, slots=True)
class _Place:
    """Where an array lies in a file."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int

    def read(self, cut: Cut | None = None) -> NDArray[Any]:
        """Read all of it, or no more than a part; bfloat16 as float32, which holds it."""
        import numpy as np  # on use, as above

        wide = self.kind == _BF16
        dtype = np.dtype("<u2" if wide else _TYPES[self.kind])
        if cut is None or not prod(self.shape):
            flat = np.fromfile(self.file, dtype, prod(self.shape), offset=self.offset)
            array: NDArray[Any] = flat.reshape(self.shape)
            array = array if cut is None else array[cut]
        else:
            array = np.array(np.memmap(self.file, dtype, "r", self.offset, self.shape)[cut])
        return (array.astype("<u4") << np.uint32(16)).view("<f4") if wide else array

    def read_into(self, out: NDArray[Any]) -> bool:
        """Read all of it into an array, if it is just such a one; tell whether."""
        same = (out.dtype.str, out.shape) == (_TYPES.get(self.kind), self.shape)
        if not (same and out.flags.c_contiguous and out.flags.writeable):
            return False
        left = out.reshape(-1).view("u1").data
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.offset)
            while len(left):
                count = file.readinto(left)
                if not count:
                    raise damaged(self.file, "it has become shorter")
                left = left[count:]
        return True


@final
class StoredArrays(Mapping[str, "NDArray[Any]"]):
    """Arrays of files, each of which is read when it is looked at.

    stored: by the name here, where each is.
    """

    def __init__(self, stored: Mapping[str, _Place]) -> None:
        self._stored = stored

    def of(self, prefix: str) -> StoredArrays:
        """Return those whose names begin so, without that."""
        return StoredArrays(
            {n.removeprefix(prefix): at for n, at in self._stored.items() if n.startswith(prefix)}
        )

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored[name].shape

    def part(self, name: str, cut: Cut) -> NDArray[Any]:
        """Read a part, and no more of the file."""
        return self._stored[name].read(cut)

    def read_into(self, name: str, out: NDArray[Any]) -> bool:
        """Read all of one into an array, if it is just such a one; tell whether."""
        return self._stored[name].read_into(out)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._stored[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


def read_arrays(place: Path, name: str) -> StoredArrays:
    """Return the arrays of a file, or of those that an index of that name lists."""
    index = place / f"{name}.index.json"
    files: Sequence[str] = [name]
    if index.is_file():
        files = [*dict.fromkeys(json.loads(index.read_text())["weight_map"].values())]
    return StoredArrays({key: at for file in files for key, at in _places(place / file)})


def _places(path: Path) -> Iterator[tuple[str, _Place]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            told: dict[str, Any] = json.loads(file.read(length))
        told.pop("__metadata__", None)
        for name, each in told.items():
            if each["dtype"] not in _TYPES and each["dtype"] != _BF16:
                raise damaged(path, f"{name!r} is of the type {each['dtype']}")
            begin = 8 + length + int(each["data_offsets"][0])
            yield name, _Place(path, each["dtype"], tuple(each["shape"]), begin)
    except (struct.error, KeyError, ValueError, MemoryError, OverflowError) as error:
        raise damaged(path, f"its header cannot be read ({error})") from error


def part_of(arrays: Arrays, name: str, cut: Cut | None) -> NDArray[Any]:
    """Return a part of an array, or with None all of it, in memory of its own; of a file no more is
    read."""
    if cut is None:
        return arrays[name]
    return arrays.part(name, cut) if isinstance(arrays, StoredArrays) else arrays[name][cut].copy()


def check_arrays(what: str, saved: Arrays, here: Mapping[str, tuple[int, ...]]) -> None:
    """Raise where arrays are not those of the model they are for. here: NAME -> shape."""
    check_names(what, [*saved], [*here])
    for name, shape in here.items():
        found = shape_of(saved, name)
        if found != shape:
            raise ConfigurationError(
                f"This checkpoint belongs to different {what}. Received: {name!r} of shape {found} "
                f"in it, {shape} here. Create them as they were when the checkpoint was saved."
            )


def shape_of(arrays: Arrays, name: str) -> tuple[int, ...]:
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
        f"A checkpoint file has changed since it was written. Received: {path}: {why}. Remove its "
        "folder; the previous checkpoint is then used."
    )
