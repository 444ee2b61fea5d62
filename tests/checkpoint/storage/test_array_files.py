"""Files of arrays: the library `safetensors` reads what is written here, and its are read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import dream
from dream.checkpoint.content import BFLOAT16
from dream.checkpoint.storage.array_files import check_file, read_arrays, write_arrays

ARRAYS: dict[str, Any] = {
    "whole": np.arange(60, dtype=np.float32).reshape(5, 12),
    "turned": np.arange(60, dtype=np.float64).reshape(5, 12).T,
    "number": np.array(3, np.int64),
    "empty": np.zeros((0, 3), np.float16),
    "flags": np.array([True, False, True]),
    "wave": np.array([1 + 2j], np.complex64),
    "odd": np.arange(7, dtype=np.uint8),
}


def test_the_library_reads_it(tmp_path: Path) -> None:
    told = write_arrays(tmp_path / "a.safetensors", ARRAYS)
    content = (tmp_path / "a.safetensors").read_bytes()
    assert told == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_what_the_library_wrote_is_read_whole_and_in_part(tmp_path: Path) -> None:
    save_file({n: np.ascontiguousarray(a) for n, a in ARRAYS.items()}, tmp_path / "a.safetensors")
    found = read_arrays(tmp_path, "a.safetensors")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
    rows = found.part("whole", (slice(1, 3), slice(None, None, 2)))
    np.testing.assert_array_equal(rows, ARRAYS["whole"][1:3, ::2])
    assert rows.flags.writeable
    assert found.part("empty", (slice(0, 0),)).shape == (0, 3)
    into = np.zeros((5, 12), np.float32)
    assert found.read_into("whole", into)
    np.testing.assert_array_equal(into, ARRAYS["whole"])
    assert not found.read_into("whole", np.zeros((5, 12)))  # of another type
    assert not found.read_into("whole", np.zeros((12, 5), np.float32).T)


def test_bfloat16_stays_what_it_is(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.140625], np.float32)
    bits = (values.view(np.uint32) >> 16).astype("<u2").view(BFLOAT16)
    told = write_arrays(tmp_path / "a.safetensors", {"half": bits})
    assert b'"BF16"' in (tmp_path / "a.safetensors").read_bytes()
    found = read_arrays(tmp_path, "a.safetensors")
    np.testing.assert_array_equal(found["half"], values, strict=True)  # which float32 holds
    np.testing.assert_array_equal(found.part("half", (slice(1, 2),)), values[1:2])
    assert told["bytes"] == (tmp_path / "a.safetensors").stat().st_size


def test_what_is_no_such_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    told = write_arrays(file, ARRAYS)
    content = bytearray(file.read_bytes())
    for broken in (b"", content[:4], bytes([255] * 8), content[:40]):
        file.write_bytes(broken)
        with pytest.raises(dream.ConfigurationError, match=r"a\.safetensors"):
            read_arrays(tmp_path, "a.safetensors")
        with pytest.raises(dream.ConfigurationError, match=r"a\.safetensors"):
            check_file(file, told)
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(dream.ConfigurationError, match="its digest is another"):
        check_file(file, told)
    with pytest.raises(dream.ConfigurationError, match=r"cannot store this data type.*'text'"):
        write_arrays(file, {"text": np.array(["a"])})
