"""Under Horovod's own launcher, whose store is open to whoever finds its port: nothing of dream's
or of the ring's goes there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dream.cluster.ports import next_port

SCRIPT = Path(__file__).with_name("ring_launcher.py")


@pytest.mark.slow
def test_the_ring_is_joined_beside_the_launchers_own_store(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.1", 0)) as launchers:
        port = launchers.getsockname()[1]
        started = [_rank(rank, port, tmp_path) for rank in range(2)]
        said = [process.communicate(timeout=300) for process in started]
        assert [process.returncode for process in started] == [0, 0], said
        launchers.setblocking(False)
        with pytest.raises(BlockingIOError):
            launchers.accept()
    for out, _ in said:
        total, told, again, store = json.loads(out.splitlines()[-1])
        assert (total, again) == ([3.0] * 3, [2.0] * 2)
        assert told == [["rank", 0], ["rank", 1]]
        assert store == f"127.0.0.1:{next_port(port)}"


def _rank(rank: int, port: int, runtime: Path) -> subprocess.Popen[str]:
    place = {
        "HOROVOD_RANK": rank, "HOROVOD_SIZE": 2, "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_LOCAL_SIZE": 2, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port, "XDG_RUNTIME_DIR": runtime,
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **{name: str(value) for name, value in place.items()}},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
