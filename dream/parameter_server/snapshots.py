"""What a server leaves in files, so that training can go on after it died."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, final

from dream._errors import CheckpointError
from dream._plain import Garbled, pack, unpack
from dream.files.whole import write_whole

_NAME = re.compile(r"server(\d+)-(\d{8,})")


@final
class Snapshots:
    """The files of one server, in the folder of its job: `server0-00000120` holds what it was
    after 120 updates. The launcher made the folder for this job alone."""

    def __init__(self, folder: Path, server: int, servers: int) -> None:
        self._folder, self._server, self._servers = folder, server, servers

    def write(self, version: int, content: dict[str, Any]) -> None:
        """Whole or not at all. Older ones go once every server has a newer one in common: until
        then training goes on from them."""
        data = pack(content)
        write_whole(self._file(version), lambda file: file.write(data))
        versions = self._versions()
        common = _newest_common(versions)
        for old in versions[self._server]:
            if common is not None and old < common:
                self._file(old).unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """The last version that every server has; None where nothing was kept, and training
        begins. `CheckpointError` where there are files without a common version."""
        versions = self._versions()
        common = _newest_common(versions)
        if common is None:
            if any(max(own, default=0) for own in versions):
                raise self._torn(versions)
            return None  # nothing, or the parameters that start, which not all had come to keep
        return common, self._read(common)

    def forget_after(self, version: int) -> None:
        """Training goes on from there: what came after it must not mix with what comes now."""
        for newer in self._versions()[self._server]:
            if newer > version:
                self._file(newer).unlink(missing_ok=True)

    def _read(self, version: int) -> dict[str, Any]:
        file = self._file(version)
        try:
            content: dict[str, Any] = unpack(file.read_bytes())
        except (OSError, Garbled) as error:
            raise CheckpointError(
                f"A snapshot cannot be read. Received: {file} ({error}). Start the job anew."
            ) from error
        return content

    def _torn(self, versions: list[list[int]]) -> CheckpointError:
        told = ", ".join(f"server {server}: {own or 'none'}" for server, own in enumerate(versions))
        return CheckpointError(
            "The servers' snapshots have no version in common, so training cannot go on from "
            f"them. Received: {self._folder}, which has {told}. Start the job anew, or bring the "
            "missing files back."
        )

    def _versions(self) -> list[list[int]]:
        """By server, ascending."""
        found: list[list[int]] = [[] for _ in range(self._servers)]
        for file in self._folder.iterdir():
            name = _NAME.fullmatch(file.name)
            if name is not None and int(name[1]) < self._servers:
                found[int(name[1])].append(int(name[2]))
        return [sorted(versions) for versions in found]

    def _file(self, version: int) -> Path:
        return self._folder / f"server{self._server}-{version:08d}"


def _newest_common(versions: list[list[int]]) -> int | None:
    first, *others = map(set, versions)
    return max(first.intersection(*others), default=None)
