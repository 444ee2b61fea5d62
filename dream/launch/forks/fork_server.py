"""Start ranks from a parent that has imported their frameworks already: a fork costs milliseconds
where the import of a framework costs seconds.

A server listens at a socket. For each set of modules and each environment that modules may read
while they are imported it keeps one parent, which has imported them and run nothing: no thread runs
beside its own, and a fork of it is as good as a fresh interpreter. What was imported stays hidden
from the rank until the rank imports it (`hidden.py`). The server ends with whoever holds its
standard input, and its ranks end with it.

Launchers take their ranks from it where DREAM_FORK_SERVER names its socket and DREAM_FORK_IMPORTS
the modules. Run as a file, so that server and parents import nothing else.

Usage: fork_server.py server DESCRIPTOR | parent DESCRIPTOR MODULES...
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from dream.launch.forks.hidden import HiddenModules

PARENTS_AT_ONCE = 4
"""A parent holds some hundred megabytes; the one that was asked least recently goes."""

_ROOM = "-" * 4000
"""A last argument for what a rank's command line is written over."""

LONGEST_REQUEST = 1 << 18
"""Bytes of a request: its environment is the most of it."""

_NOT_READ_AT_IMPORT = (
    "DREAM_", "HOROVOD_", "TF_CONFIG", "TF_NUM_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_",
    "MASTER_", "GLOO_", "NCCL_", "CONTRACT_", "PYTEST_", "PWD", "OLDPWD", "SHLVL", "COLUMNS",
    "LINES", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "_",
)  # fmt: skip
"""Prefixes of variables that say where a rank stands, or are read when it trains. Ranks that
differ in any other have different parents. (scikit-learn sets KMP's when it is imported: Intel's
OpenMP reads them when threads first work.)"""

_NOT_READ_BY_TORCH = ("TF_", "KERAS_")
"""Prefixes that count for nothing where torch alone is imported."""

_Child = tuple[subprocess.Popen[bytes], socket.socket]
"""A parent of ranks, and how to reach it."""

_RETIRE = b"retire"
_LARGEST_CODE = 1 << 30
"""Of a script's exit: Python has others end with what it likes."""


_STANDING = (
    "Umask", "Uid", "Gid", "Groups", "CapEff", "Cpus_allowed", "Mems_allowed", "NoNewPrivs",
    "Seccomp",
)  # fmt: skip


def standing() -> dict[str, str]:
    """Return what a process inherits beside its environment: who it is, its limits and its
    namespaces."""
    with open("/proc/self/status") as file:  # noqa: PTH123
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    found = {name: status[name] for name in _STANDING if name in status}
    with open("/proc/self/limits") as file:  # noqa: PTH123
        found["limits"] = file.read()
    for name in ("net", "mnt", "uts", "ipc", "pid", "user", "cgroup"):
        found[name] = os.readlink(f"/proc/self/ns/{name}")  # noqa: PTH115
    return found


class _Request:
    """What a launcher asks for, with its connection and the rank's descriptors."""

    def __init__(self, message: bytes, link: socket.socket, files: list[int]) -> None:
        self.link, self.files = link, files
        told = json.loads(message)
        self.command: list[str] = told["command"]
        self.environ: dict[str, str] = told["environ"]
        self.imports: list[str] = told["imports"]
        self.sets: dict[str, str] = told["sets"]
        self.folder: str = told["folder"]
        self.beside: str = told["beside"]
        self.passed: list[str] = told["passed"]
        self.standing: dict[str, str] = told["standing"]

    def close(self) -> None:
        self.link.close()
        for file in self.files:
            os.close(file)

    def read_at_import(self) -> dict[str, str]:
        """The part of the environment that a parent must share, as the script will have set it."""
        environ = {**self.environ, **self.sets}
        return {name: text for name, text in environ.items() if self.reads(name)}

    def reads(self, variable: str) -> bool:
        """Whether the imports may read a variable."""
        packages = {name.partition(".")[0] for name in self.imports}
        of_torch = packages == {"numpy", "dream", "torch"}
        unread = _NOT_READ_AT_IMPORT + _NOT_READ_BY_TORCH * of_torch
        return not variable.startswith(unread)

    def become(self) -> list[str]:
        """Be the rank, in a child just forked: its session, streams, folder and environment.
        Return its command."""
        os.setsid()
        self.link.close()
        for number, file in enumerate(self.files[:3]):
            os.dup2(file, number)
        for file in self.files[:3]:
            os.close(file)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environ)
        os.environ.update(self._numbers())
        return self.command

    def start_fresh(self, why: str) -> NoReturn:
        """Have the rank begin again in an interpreter of its own."""
        sys.stdout.flush()
        rank = self.environ.get("RANK", "0")
        text = f"dream run: {why}: rank {rank} begins again, in an interpreter of its own.\n"
        os.write(2, text.encode())
        for file in self.files[3:]:
            os.set_inheritable(file, True)
        os.execve(sys.executable, [sys.executable, *self.command], self.environ | self._numbers())

    def _numbers(self) -> dict[str, str]:
        return dict(zip(self.passed, map(str, self.files[3:]), strict=True))


class _Server:
    """Hands each request to the parent that has imported what it asks for."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._parents: dict[str, _Child] = {}
        self._retired: list[_Child] = []

    def run(self) -> None:
        """Serve until standard input ends."""
        watched = (sys.stdin.fileno(), self._listener.fileno())
        while watched[0] not in select.select(watched, [], [])[0]:
            link = self._listener.accept()[0]
            link.settimeout(10.0)
            with contextlib.suppress(OSError, ValueError):
                self._pass_on(link)
            link.close()
        for process, inbox in (*self._parents.values(), *self._retired):
            inbox.close()
            process.wait()

    def _pass_on(self, link: socket.socket) -> None:
        message, files, _, _ = socket.recv_fds(link, LONGEST_REQUEST, 16)
        request = _Request(message, link, list(files))
        shared = request.read_at_import()
        key = json.dumps([request.imports, sorted(shared.items())])
        try:
            parent = self._parents.pop(key, None)
            if parent is None or parent[0].poll() is not None:
                parent = _start_parent(request.imports, shared)
            self._parents[key] = parent  # last: asked most recently
            socket.send_fds(parent[1], [message], [link.fileno(), *files])
            if len(self._parents) > PARENTS_AT_ONCE:
                self._retire(next(iter(self._parents)))
        finally:
            for file in files:
                os.close(file)

    def _retire(self, key: str) -> None:
        """Let a parent go as soon as it has no ranks."""
        parent = self._parents.pop(key)
        self._retired = [each for each in (*self._retired, parent) if each[0].poll() is None]
        with contextlib.suppress(OSError):
            parent[1].send(_RETIRE)


def _start_parent(imports: Iterable[str], environ: Mapping[str, str]) -> _Child:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, "parent", str(theirs.fileno()), *imports, _ROOM],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # no terminal, as the ranks'
            pass_fds=(theirs.fileno(),),
        )
    return process, ours


class _Parent:
    """Forks ranks, tells their ends, and kills those whose launcher is gone."""

    def __init__(self, inbox: socket.socket, modules: HiddenModules) -> None:
        self._inbox, self._modules = inbox, modules
        self._unsafe = _unsafe()
        self._wait = selectors.DefaultSelector()
        self._wait.register(inbox, selectors.EVENT_READ, self._fork)
        self._ranks: dict[int, tuple[socket.socket, int]] = {}
        self._retired = False

    def run(self) -> _Request | None:
        """Return a request in the child forked for it, and None in the parent, at its end."""
        while not self._retired or self._ranks:
            for key, _ in self._wait.select():
                if key.fileobj is not self._inbox:
                    key.data()
                elif not (message := self._receive()):
                    for pid in list(self._ranks):  # the server is gone
                        self._reap(pid)
                    return None
                elif request := self._fork(*message):
                    return request
        return None

    def _receive(self) -> tuple[bytes, list[int]] | None:
        message, files, _, _ = socket.recv_fds(self._inbox, LONGEST_REQUEST, 16)
        return (message, list(files)) if message else None

    def _fork(self, message: bytes, files: list[int]) -> _Request | None:
        """Return the request in the child."""
        if message == _RETIRE:
            self._retired = True
            return None
        link, *others = files
        request = _Request(message, socket.socket(fileno=link), others)
        if refusal := self._refusal(request):
            request.link.send(refusal.encode())
            request.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._wait.close()
            self._inbox.close()
            for other, end in self._ranks.values():
                other.close()
                os.close(end)
            return request
        for file in others:
            os.close(file)
        end = os.pidfd_open(pid)
        self._ranks[pid] = request.link, end
        self._wait.register(end, selectors.EVENT_READ, partial(self._tell, pid))
        self._wait.register(request.link, selectors.EVENT_READ, partial(self._reap, pid))
        with contextlib.suppress(OSError):
            request.link.send(str(pid).encode())
        return None

    def _refusal(self, request: _Request) -> str:
        """Why a fork would not be what the launcher asks for; empty where it is."""
        if self._unsafe:
            return f"after {', '.join(request.imports)} {self._unsafe}"
        ours, theirs = standing(), request.standing
        apart = [name for name in theirs if theirs[name] != ours.get(name)]
        if apart:
            return f"the fork server stands elsewhere than the launcher, by {apart}"
        taken = self._modules.taken_by(request.beside)
        return f"{taken} has the name of a module that frameworks import" if taken else ""

    def _tell(self, pid: int) -> None:
        """It has ended. Its number stays its own until its launcher hangs up."""
        if pid not in self._ranks:
            return  # its launcher hung up in the same moment
        link, end = self._ranks[pid]
        self._wait.unregister(end)
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert status is not None
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        with contextlib.suppress(OSError):
            link.send(str(code).encode())

    def _reap(self, pid: int) -> None:
        """Its launcher has hung up: what is left of it and of its group goes."""
        link, end = self._ranks.pop(pid)
        self._wait.unregister(link)
        with contextlib.suppress(KeyError):
            self._wait.unregister(end)
        link.close()
        os.close(end)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)  # it may have no group of its own yet
        os.waitpid(pid, 0)


def main() -> None:
    _, kind, number, *imports = sys.argv
    inbox = socket.socket(fileno=int(number))
    if kind == "server":
        _Server(inbox).run()
        return
    before = {*sys.modules}
    from dream.launch.forks.end import end_script
    from dream.launch.forks.hidden import HiddenModules, show_command

    show_command([sys.executable, __file__, kind, number, *imports[:-1]])
    del sys.path[0]  # this file's folder
    gc.disable()  # looking through what is imported takes a tenth of the time
    modules = HiddenModules(imports[:-1], before)
    gc.collect()
    gc.freeze()
    gc.enable()
    request = _Parent(inbox, modules).run()
    if request is None:
        return
    command = request.become()
    show_command([sys.executable, *command])
    modules.serve(request.read_at_import(), request.reads, request.start_fresh)
    _run_to_its_end(command, lambda code: end_script(code, modules.packages, modules.finalizers))


def _unsafe() -> str:
    """Say why a fork of this process would not be as a fresh one; empty where it would.

    Libraries that know of forks, as OpenBLAS, end their own threads before one, and start them
    again when they need them: so fork once before counting."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        os.close(os.pidfd_open(pid))
    except OSError as error:
        return f"no end of a process can be waited for ({error.strerror})"
    finally:
        os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task")) - 1  # noqa: PTH208 - names are enough
    if threads:
        names = [each.name for each in threading.enumerate()[1:]]
        return f"{threads} threads run{f', of Python {names}' if names else ''}"
    tools = getattr(sys, "monitoring", None)
    traced = tools is not None and any(tools.get_tool(number) for number in range(6))
    if traced or sys.gettrace() or sys.getprofile() or threading.gettrace():
        return "a tracer or profiler runs"
    return ""


def _run_to_its_end(command: list[str], end: Callable[[int], None]) -> None:
    code = 0
    try:
        _run(command)
    except SystemExit as error:
        if not isinstance(error.code, int | None) or abs(error.code or 0) > _LARGEST_CODE:
            raise
        code = error.code or 0
    end(code & 0xFF)
    raise SystemExit(code)


def _run(command: list[str]) -> None:
    """Run a script as Python itself would."""
    path = command[0]
    sys.argv = command
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    with open(path, "rb") as file:  # noqa: PTH123
        code = compile(file.read(), path, "exec", dont_inherit=True)
    module = ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __annotations__={})
    sys.modules["__fork_server__"] = sys.modules["__main__"]  # whose functions need its globals
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
