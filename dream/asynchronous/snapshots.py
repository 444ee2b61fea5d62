"""What a server leaves in files, so that training can go on after it died."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, final

_KEPT = 2


@final
class Snapshots:
    """The files of one server, in the folder of its job: `server0-00000120` holds what it was
    after 120 updates. Trusted: the launcher made the folder for this job alone."""

    def __init__(self, folder: Path, server: int, servers: int) -> None:
        self._folder, self._server, self._servers = folder, server, servers

    def write(self, version: int, content: dict[str, Any]) -> None:
        """Whole or not at all; the older ones but one go."""
        file = self._file(self._server, version)
        part = file.with_suffix(".part")
        part.write_bytes(pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL))
        part.replace(file)
        for old in self._versions(self._server)[:-_KEPT]:
            self._file(self._server, old).unlink(missing_ok=True)

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """The last version that every server has; None where there is none."""
        common = set(self._versions(0)).intersection(*map(self._versions, range(self._servers)))
        if not common:
            return None
        version = max(common)
        return version, pickle.loads(self._file(self._server, version).read_bytes())

    def _versions(self, server: int) -> list[int]:
        files = self._folder.glob(f"server{server}-*[0-9]")
        return sorted(int(file.name.rpartition("-")[2]) for file in files)

    def _file(self, server: int, version: int) -> Path:
        return self._folder / f"server{server}-{version:08d}"
