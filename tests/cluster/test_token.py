"""The token of a job under somebody else's launcher: nothing that can be guessed, and no file that
others can read or have made."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dream import ConfigurationError
from dream.cluster import detect
from dream.cluster import token as tokens

BY_HAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
TORCHRUN = {**BY_HAND, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "host0"}
WORKERS = {"cluster": {"worker": ["localhost:29499", "localhost:2"]}}
TF_CONFIG = {"TF_CONFIG": json.dumps({**WORKERS, "task": {"type": "worker", "index": 0}})}
HOROVOD = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "29499",
}
SEVERAL = {
    "torchrun": {**TORCHRUN, "WORLD_SIZE": "4"},
    "TF_CONFIG": {
        "TF_CONFIG": json.dumps(
            {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
        )
    },
    "Horovod's launcher": {
        **HOROVOD,
        "HOROVOD_CROSS_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    },
}


@pytest.fixture
def runtime(tmp_path: Path) -> dict[str, str]:
    """A folder as a login makes one."""
    folder = tmp_path / "runtime"
    folder.mkdir(mode=0o700)
    return {"XDG_RUNTIME_DIR": str(folder)}


@pytest.mark.parametrize("environ", [BY_HAND, TORCHRUN, TF_CONFIG, HOROVOD])
def test_nothing_guessable(environ: dict[str, str], runtime: dict[str, str]) -> None:
    """Everything in the environment may be known: it takes the file to make the token."""
    token = detect({**environ, **runtime}).token
    assert len(token) >= 32
    assert "29500" not in token
    file = Path(runtime["XDG_RUNTIME_DIR"], "dream", "secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert detect({**environ, **runtime}).token == token
    file.unlink()  # as at the user's logout
    assert detect({**environ, **runtime}).token == token
    tokens._read_secret.cache_clear()
    assert detect({**environ, **runtime}).token != token


def test_ranks_agree_and_jobs_differ(runtime: dict[str, str]) -> None:
    def token(**change: str) -> str:
        return detect({**BY_HAND, **runtime, **change}).token

    assert token() == token(RANK="1") == token(MASTER_ADDR="127.0.0.1")
    others = [token(MASTER_PORT="1"), token(WORLD_SIZE="3"), token(TORCHELASTIC_RUN_ID="a")]
    assert len({token(), *others}) == 4


def test_ranks_that_start_at_one_time_agree(runtime: dict[str, str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        folder = str(Path(runtime["XDG_RUNTIME_DIR"], "dream"))
        read = tokens._read_secret.__wrapped__  # which every process does once
        secrets = set(pool.map(lambda _: read(folder), range(64)))
    assert len(secrets) == 1
    assert [f.name for f in Path(runtime["XDG_RUNTIME_DIR"], "dream").iterdir()] == ["secret"]


def test_the_users_own_word_wins(runtime: dict[str, str]) -> None:
    for environ in (BY_HAND, TF_CONFIG, HOROVOD):
        assert detect({**environ, **runtime, "DREAM_TOKEN": "abcd-1234"}).token == "abcd-1234"
    assert not Path(runtime["XDG_RUNTIME_DIR"], "dream").exists()


@pytest.mark.parametrize("word", ["short", "with/slash-in-it", "späße-und-mehr", "a b c d e f g"])
def test_an_unfit_word_is_refused_and_not_told(word: str) -> None:
    with pytest.raises(ConfigurationError, match="DREAM_TOKEN") as error:
        detect({**BY_HAND, "DREAM_TOKEN": word})
    assert word not in str(error.value)


@pytest.mark.parametrize("launcher", SEVERAL)
def test_several_hosts_are_asked_for_a_word(launcher: str, runtime: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"export DREAM_TOKEN=[0-9a-f]{32}$") as error:
        detect({**SEVERAL[launcher], **runtime})
    assert launcher in str(error.value)
    assert detect({**SEVERAL[launcher], "DREAM_TOKEN": "abcd-1234"}).token == "abcd-1234"


def test_a_secret_of_horovods_launcher_will_do() -> None:
    environ = {**SEVERAL["Horovod's launcher"], "_HOROVOD_SECRET_KEY": "k" * 44}
    token = detect(environ).token
    assert "k" * 8 not in token
    assert token != detect({**environ, "_HOROVOD_SECRET_KEY": "l" * 44}).token


def _make(folder: Path, mode: int, file_mode: int, size: int = 32) -> None:
    folder.mkdir()
    (folder / "secret").write_bytes(bytes(size))
    (folder / "secret").chmod(file_mode)
    folder.chmod(mode)


def _linked_file(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder.parent / "elsewhere").write_bytes(bytes(32))
    (folder / "secret").symlink_to(folder.parent / "elsewhere")


def _linked_folder(folder: Path) -> None:
    _make(folder.parent / "elsewhere", 0o700, 0o600)
    folder.symlink_to(folder.parent / "elsewhere")


def _pipe(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    os.mkfifo(folder / "secret", 0o600)


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (lambda folder: _make(folder, 0o755, 0o600), r"dream \(open to others, mode 0755"),
        (lambda folder: _make(folder, 0o700, 0o644), r"secret \(open to others, mode 0644"),
        (lambda folder: _make(folder, 0o700, 0o600, size=31), "not a file of 32 bytes"),
        (lambda folder: folder.write_bytes(b""), "Not a directory"),
        (_linked_file, "secret .*symbolic links"),
        (_linked_folder, "Not a directory|symbolic links"),
        (_pipe, "not a file"),
    ],
)
def test_a_file_that_others_could_know_is_refused(
    prepare: object, named: str, runtime: dict[str, str]
) -> None:
    prepare(Path(runtime["XDG_RUNTIME_DIR"], "dream"))  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=f"(?s){named}.*export DREAM_TOKEN="):
        detect({**BY_HAND, **runtime})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make files of another user")
@pytest.mark.parametrize("what", [".", "secret"])
def test_another_users_file_is_refused(what: str, runtime: dict[str, str]) -> None:
    folder = Path(runtime["XDG_RUNTIME_DIR"], "dream")
    _make(folder, 0o700, 0o600)
    os.chown(folder / what, 65534, 65534)
    with pytest.raises(ConfigurationError, match="owned by user 65534"):
        detect({**BY_HAND, **runtime})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make folders of another user")
def test_a_runtime_folder_that_is_not_ours_is_not_used(
    runtime: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(runtime["XDG_RUNTIME_DIR"], 65534, 65534)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    detect({**BY_HAND, **runtime})
    assert (tmp_path / f"dream-{os.getuid()}" / "secret").exists()


_KNOCKS = """
import dream
from dream import cluster
from dream.cluster import Rendezvous

place = cluster.detect()
cluster.meet(place, "start")
if place.rank == 0:
    cluster.posted(place, "knocked/1")
else:
    for word in (f"job-{place.master.port}", "", str(place.master.port)):
        try:
            Rendezvous(place.rendezvous, word).find("meet-start/0")
        except dream.ConfigurationError:
            print("refused", flush=True)
    cluster.post(place, "knocked/1", b"")
"""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _ended(command: list[str], environ: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_torchruns_port_opens_nothing(tmp_path: Path, runtime: dict[str, str]) -> None:
    script = tmp_path / "knocks.py"
    script.write_text(_KNOCKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    port = ["--master-port", str(_free_port())]
    code, said = _ended([*torchrun, *port, str(script)], runtime)
    assert code == 0, said
    assert said.count("refused") == 3


@pytest.mark.slow
def test_two_hosts_without_a_word_are_asked_before_anything_listens(
    tmp_path: Path, runtime: dict[str, str]
) -> None:
    script = tmp_path / "says.py"
    script.write_text("import dream\nwith dream.strategy(framework='torch'):\n    pass\n")
    hosts = {**SEVERAL["torchrun"], "MASTER_ADDR": "127.0.0.1"}
    code, said = _ended([sys.executable, str(script)], {**hosts, **runtime})
    assert code == 1
    assert "export DREAM_TOKEN=" in said
