"""Start ranks from a parent that has imported their frameworks already: a fork costs milliseconds
where the import of a framework costs seconds.

A server listens at a socket. For each set of modules and each environment that modules may read
while they are imported it keeps one parent, which has imported them and run nothing: no thread runs
beside its own, and a fork of it is as good as a fresh interpreter. What was imported stays hidden
from the rank until the rank imports it, so `"torch" in sys.modules` and import hooks tell what they
always tell. The server ends with whoever holds its standard input, and its ranks end with it.

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
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PARENTS_AT_ONCE = 4
"""A parent holds some hundred megabytes; the one that was asked least recently goes."""

LONGEST_REQUEST = 1 << 18
"""Bytes of a request: its environment is the most of it."""

_NOT_READ_AT_IMPORT = (
    "DREAM_", "HOROVOD_", "TF_CONFIG", "TF_NUM_", "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_",
    "MASTER_", "GLOO_", "NCCL_", "CONTRACT_", "PYTEST_", "PWD", "OLDPWD", "SHLVL", "COLUMNS",
    "LINES", "_",
)  # fmt: skip
"""Prefixes of variables that say where a rank stands, or are read when it trains. Ranks that
differ in any other have different parents."""

_NOT_READ_BY_TORCH = ("TF_", "KERAS_")
"""Prefixes that count for nothing where torch alone is imported."""

_SEEDED_AT_IMPORT = {"numpy.random", "torch"}

_Child = tuple[subprocess.Popen[bytes], socket.socket]
"""A parent of ranks, and how to reach it."""

_RETIRE = b"retire"


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
        self.message, self.link, self.files = message, link, files
        told = json.loads(message)
        self.command: list[str] = told["command"]
        self.environ: dict[str, str] = told["environ"]
        self.imports: list[str] = told["imports"]
        self.folder: str = told["folder"]
        self.passed: list[str] = told["passed"]
        self.standing: dict[str, str] = told["standing"]

    def close(self) -> None:
        self.link.close()
        for file in self.files:
            os.close(file)

    def read_at_import(self) -> dict[str, str]:
        """The part of the environment that a parent must share."""
        packages = {name.partition(".")[0] for name in self.imports}
        of_torch = packages == {"numpy", "dream", "torch"}
        unread = _NOT_READ_AT_IMPORT + _NOT_READ_BY_TORCH * of_torch
        return {name: text for name, text in self.environ.items() if not name.startswith(unread)}

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
        os.environ.update(zip(self.passed, map(str, self.files[3:]), strict=True))
        return self.command


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
            [sys.executable, __file__, "parent", str(theirs.fileno()), *imports],
            env=environ,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
    return process, ours


class _Imported(MetaPathFinder, Loader):
    """Modules that a parent has imported and a rank has not: put back when it does."""

    def __init__(self, names: Iterable[str]) -> None:
        """Import and hide them. Python's own stay; that these were imported changes nothing."""
        self._groups: list[tuple[str, dict[str, ModuleType]]] = []
        self._specs: dict[str, ModuleSpec | None] = {}
        before = set(sys.modules)
        for name in names:
            with contextlib.suppress(ImportError):  # the rank's own to raise
                import_module(name)
            new = {key: sys.modules[key] for key in sys.modules.keys() - before if _foreign(key)}
            self._groups.append((name, new))
            before.update(sys.modules)
        for _, modules in self._groups:
            for name in modules:
                del sys.modules[name]
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for _, modules in self._groups:
            if fullname in modules:
                self._specs[fullname] = getattr(modules[fullname], "__spec__", None)
                return ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return next(modules[spec.name] for _, modules in self._groups if spec.name in modules)

    def exec_module(self, module: ModuleType) -> None:
        """With it come those that its own import would have brought: all, where it was imported by
        name, else those of its package."""
        assert module.__spec__ is not None
        name = module.__spec__.name
        module.__spec__ = self._specs.pop(name)
        group, modules = next(each for each in self._groups if name in each[1])
        package = name.partition(".")[0]
        for other in list(modules):
            if name == group or other.partition(".")[0] == package:
                sys.modules[other] = modules.pop(other)
        if name == "keras":  # its own import would bring its backend, and watches count on that
            import_module(module.backend.backend())

    def new_draws(self) -> None:
        """Let generators that draw their seed at import draw another: no two ranks share it."""
        for modules in (sys.modules, *(modules for _, modules in self._groups)):
            for name in _SEEDED_AT_IMPORT & modules.keys():
                module = modules[name]  # torch.random.seed would import torch.cuda, and unhide all
                if name == "torch":
                    module.default_generator.seed()
                else:  # by seed() it would look seeded by a script
                    module.set_bit_generator(module.MT19937())


def _foreign(name: str) -> bool:
    return name.partition(".")[0] not in sys.stdlib_module_names


class _Parent:
    """Forks ranks, tells their ends, and kills those whose launcher is gone."""

    def __init__(self, inbox: socket.socket, threads: int) -> None:
        self._inbox, self._threads = inbox, threads
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
        if self._threads:
            return f"No fork is safe: {request.imports} started {self._threads} threads at import."
        ours, theirs = standing(), request.standing
        apart = [name for name in theirs if theirs[name] != ours.get(name)]
        return f"The fork server stands elsewhere than the launcher, by {apart}." if apart else ""

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
    del sys.path[0]  # this file's folder
    modules = _Imported(imports)
    gc.collect()
    gc.freeze()
    request = _Parent(inbox, _threads_left()).run()
    if request is None:
        return
    modules.new_draws()
    _run(request.become())


def _threads_left() -> int:
    """Return how many threads a fork would cut off. Libraries that know of forks, as OpenBLAS, end
    their own before one, and start them again when they need them: so fork once before counting."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) - 1  # noqa: PTH208 - names are enough


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
