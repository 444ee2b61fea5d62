"""`dream build-horovod`: keys, cache, lock, messages. The real build is marked slow."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dream import ConfigurationError, NotInstalled
from dream.adapters.horovod import _cache, _compile, _sdist, _status, _tools, build
from dream.adapters.horovod._compile import PlainProgress
from dream.adapters.horovod._status import BuildKey
from dream.cluster.settings import cache_folder
from dream.strategies import registry

BOTH = {"torch": "2.13.0+cpu", "tensorflow-cpu": "2.21.0"}

GCC_LOG = """\
  [ 54%] Building CXX object horovod/tensorflow/CMakeFiles/tensorflow.dir/xla_mpi_ops.cc.o
  cd /tmp/b/horovod-0.28.1/build && /usr/bin/c++ -DEIGEN_MPL2_ONLY=1 -c /tmp/b/xla_mpi_ops.cc
  In file included from /v/tensorflow/include/xla/layout.h:32,
                   from /v/tensorflow/include/xla/shape.h:37,
                   from /tmp/b/horovod-0.28.1/horovod/tensorflow/xla_mpi_ops.cc:25:
  /v/tensorflow/include/xla/printer.h:29:10: fatal error: highwayhash/arch_specific.h: No such file
     29 | #include "highwayhash/arch_specific.h"
        |          ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~
  compilation terminated.
  make[2]: *** [tensorflow.dir/build.make:490: tensorflow.dir/xla_mpi_ops.cc.o] Error 1
  [ 55%] Building CXX object horovod/torch/CMakeFiles/pytorch.dir/__/common/common.cc.o
  make: *** [Makefile:136: all] Error 2
  Traceback (most recent call last):
    File "setup.py", line 213, in <module>
  subprocess.CalledProcessError: Command '['cmake', '--build', '.']' returned exit status 2.
  error: subprocess-exited-with-error
"""


class Environment:
    """The distributions that importlib.metadata is told of."""

    def __init__(self, folder: Path) -> None:
        self.versions: dict[str, str] = {}
        self.folder = folder

    def version(self, name: str) -> str:
        if name not in self.versions:
            raise metadata.PackageNotFoundError(name)
        return self.versions[name]

    def distribution(self, name: str) -> Any:
        version = self.version(name)
        folder = self.folder

        class Installed:
            def __init__(self) -> None:
                self.version = version

            def locate_file(self, path: str) -> Path:
                return folder / path

        return Installed()

    def install_ring(self, key: BuildKey) -> None:
        self.versions["horovod"] = f"0.28.1+{key}"
        for framework, name in (("torch", "mpi_lib_v2.so"), ("tensorflow", "mpi_lib.so")):
            if key.version_of(framework):
                (self.folder / "horovod" / framework).mkdir(parents=True, exist_ok=True)
                (self.folder / "horovod" / framework / name).touch()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Environment:
    environment = Environment(tmp_path / "site")
    monkeypatch.setattr(metadata, "version", environment.version)
    monkeypatch.setattr(metadata, "distribution", environment.distribution)
    monkeypatch.setenv("DREAM_CACHE", str(tmp_path / "cache"))
    return environment


# --- the key ---


def test_the_key_names_the_versions(environment: Environment) -> None:
    environment.versions = dict(BOTH)
    assert str(_status.present_key()).endswith(".torch2.13.0.cpu.tensorflow2.21.0")


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow-cpu", "tensorflow-intel"])
def test_tensorflow_goes_by_several_names(environment: Environment, name: str) -> None:
    environment.versions = {name: "2.21.0"}
    assert _status.present_key().tensorflow == "2.21.0"
    assert _status.present_key().torch is None


@pytest.mark.parametrize(
    "other", [{"torch": "2.13.1+cpu"}, {"torch": "2.13.0+cu130"}, {"tensorflow-cpu": "2.22.0"}]
)
def test_another_version_is_another_key(environment: Environment, other: dict[str, str]) -> None:
    environment.versions = dict(BOTH)
    before = str(_status.present_key())
    environment.versions.update(other)
    assert str(_status.present_key()) != before


def test_another_recipe_is_another_key(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.versions = dict(BOTH)
    before = _status.present_key()
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "hook.cmake").write_text("# another")
    monkeypatch.setattr(_sdist, "FOLDER", tmp_path / "recipe")
    after = _status.present_key()
    assert after.base != before.base
    assert after.torch == before.torch


def test_another_libc_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _status.present_key()
    monkeypatch.setattr(_status, "_libc", lambda: "glibc 2.17")
    assert _status.present_key() != before


@pytest.mark.parametrize(
    "key",
    [
        BuildKey("r0123456789", "2.13.0.cpu", "2.21.0"),
        BuildKey("rabc", torch="2.14.0.dev20261101.cu130"),
        BuildKey("rabc", tensorflow="2.22.0rc1"),
    ],
)
def test_a_key_is_read_back_from_a_version(key: BuildKey) -> None:
    assert _status.parse(f"0.28.1+{key}") == key


@pytest.mark.parametrize("version", ["0.28.1", "0.28.1+local", "0.28.1+dream", "0.28.1+dream.x1"])
def test_a_foreign_version_has_no_key(version: str) -> None:
    assert _status.parse(version) is None


def test_a_key_is_a_canonical_local_version() -> None:
    packaging = pytest.importorskip("packaging.version")
    spelled = _status.local_spelling("2.14.0.Dev007+Git_0A1.0123")
    version = f"0.28.1+{BuildKey('r0123456789', spelled)}"
    assert str(packaging.Version(version)) == version


# --- status and require ---


def test_no_ring(environment: Environment) -> None:
    environment.versions = dict(BOTH)
    now = _status.status()
    assert (now.installed, now.matches, now.torch, now.tensorflow) == (False,) * 4
    with pytest.raises(NotInstalled, match="dream build-horovod"):
        _status.require()


def test_a_reduction_without_a_ring_names_the_command(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.versions = dict(BOTH)
    for name in [name for name in sys.modules if name.startswith("horovod.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "dream.adapters.horovod.pytorch", raising=False)
    monkeypatch.setitem(sys.modules, "horovod", None)
    with pytest.raises(NotInstalled, match="dream build-horovod"):
        registry.reduction("torch", "horovod")


def test_the_right_ring(environment: Environment) -> None:
    environment.versions = dict(BOTH)
    environment.install_ring(_status.present_key())
    now = _status.status()
    assert now.installed
    assert now.matches
    assert now.torch
    assert now.tensorflow
    _status.require()


def test_a_framework_that_came_later(environment: Environment) -> None:
    environment.versions = {"torch": "2.13.0"}
    environment.install_ring(_status.present_key())
    environment.versions["tensorflow"] = "2.21.0"
    now = _status.status()
    assert now.torch
    assert not now.tensorflow
    assert not now.matches
    _status.require("torch")
    with pytest.raises(NotInstalled, match=r"tensorflow 2\.21\.0"):
        _status.require("tensorflow")


def test_a_framework_that_left(environment: Environment) -> None:
    environment.versions = dict(BOTH)
    environment.install_ring(_status.present_key())
    del environment.versions["torch"]
    assert _status.status().matches
    with pytest.raises(NotInstalled):
        _status.require("torch")


def test_a_framework_that_was_upgraded(environment: Environment) -> None:
    environment.versions = dict(BOTH)
    environment.install_ring(_status.present_key())
    environment.versions["torch"] = "2.14.0"
    now = _status.status()
    assert not now.torch
    assert now.tensorflow


def test_a_ring_that_somebody_else_built(environment: Environment) -> None:
    environment.versions = {**BOTH, "horovod": "0.28.1"}
    now = _status.status()
    assert now.installed
    assert not now.matches
    assert "stall inspector" in now.reason


def test_a_ring_whose_library_is_gone(environment: Environment) -> None:
    environment.versions = dict(BOTH)
    environment.install_ring(_status.present_key())
    (environment.folder / "horovod" / "torch" / "mpi_lib_v2.so").unlink()
    assert not _status.status().torch


# --- the command ---


@contextmanager
def replaced_compiler(
    monkeypatch: pytest.MonkeyPatch, environment: Environment, tmp_path: Path
) -> Iterator[list[str]]:
    """A build and an install that only leave traces."""
    done: list[str] = []

    def compile_wheel(key: BuildKey, cache: Path, *_: Any) -> Path:
        done.append("compiled")
        wheel = tmp_path / f"horovod-0.28.1+{key}.whl"
        wheel.write_text("wheel")
        return _cache.place(wheel, cache / str(key))

    def install(_: Path) -> None:
        done.append("installed")
        environment.install_ring(_status.present_key())

    monkeypatch.setattr(build, "compile_wheel", compile_wheel)
    monkeypatch.setattr(build, "_install", install)
    monkeypatch.setattr(_tools, "check_python", lambda: None)
    yield done


def test_build_then_nothing_then_cache(
    monkeypatch: pytest.MonkeyPatch, environment: Environment, tmp_path: Path
) -> None:
    environment.versions = dict(BOTH)
    with replaced_compiler(monkeypatch, environment, tmp_path) as done:
        assert build.main(["--no-install"]) == 0
        assert done == ["compiled"]
        assert build.main([]) == 0
        assert done == ["compiled", "installed"]
        assert build.main([]) == 0
        assert done == ["compiled", "installed"]
        assert build.main(["--force"]) == 0
        assert done == ["compiled", "installed", "compiled", "installed"]


def test_installed_already_is_said(
    environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.versions = dict(BOTH)
    environment.install_ring(_status.present_key())
    assert build.main([]) == 0
    assert "installed already" in capsys.readouterr().out


def test_print_key(environment: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    environment.versions = dict(BOTH)
    assert build.main(["--print-key"]) == 0
    assert capsys.readouterr().out.strip() == str(_status.present_key())


@pytest.mark.usefixtures("environment")
def test_neither_framework(capsys: pytest.CaptureFixture[str]) -> None:
    assert build.main([]) == 1
    told = capsys.readouterr().err
    assert "dream-systems[torch]" in told
    assert "dream-systems[tensorflow]" in told
    with pytest.raises(ConfigurationError):
        build.build()


def test_an_error_is_one_message_and_exit_code_1(
    environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.versions = dict(BOTH)
    assert build.main([]) == 1  # no pip in this environment
    told = capsys.readouterr().err
    assert "pip is not installed" in told
    assert "Traceback" not in told


def test_missing_tools_name_the_extra(environment: Environment) -> None:
    environment.versions = {"pip": "26.0", "setuptools": "82.0.0"}
    with pytest.raises(NotInstalled, match=r"dream-systems\[horovod\]"):
        _tools.check_python()
    with pytest.raises(NotInstalled, match="below 81"):
        _tools.check_build()


def test_no_compiler(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.versions = {"setuptools": "80.1"}
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NotInstalled, match=r"C\+\+ compiler"):
        _tools.check_build()


def test_finding_out_imports_no_framework() -> None:
    code = (
        "import sys\n"
        "from dream.adapters.horovod.build import status; status()\n"
        "print({'torch', 'tensorflow', 'keras', 'numpy', 'rich'} & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"


# --- the build's environment ---


@pytest.mark.parametrize(
    ("torch", "tensorflow"), [("2.13.0", "2.21.0"), ("2.13.0", None), (None, "2.21.0")]
)
def test_only_what_is_installed_is_built(torch: str | None, tensorflow: str | None) -> None:
    key = BuildKey("rabc", torch, tensorflow)
    environ = _compile.environment({}, key, Path("/cmake"), jobs=3)
    for name, version in (("PYTORCH", torch), ("TENSORFLOW", tensorflow)):
        assert environ[f"HOROVOD_WITH_{name}"] == ("1" if version else "0")
        assert environ[f"HOROVOD_WITHOUT_{name}"] == ("0" if version else "1")
    assert environ["HOROVOD_WITH_GLOO"] == "1"
    assert environ["HOROVOD_WITHOUT_MPI"] == "1"
    assert environ["HOROVOD_LOCAL_VERSION"] == str(key)
    assert environ["MAKEFLAGS"] == "-j3"


def test_the_callers_settings_do_not_choose_another_build() -> None:
    caller = {
        "PATH": "/bin", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_RANK": "1", "MAKELEVEL": "1",
        "MAKEFLAGS": " --jobserver-auth=3,4", "CMAKE_GENERATOR": "Ninja", "CCL_ROOT": "/ccl",
    }  # fmt: skip
    environ = _compile.environment(caller, BuildKey("rabc", "2.13.0"), Path("/cmake"), jobs=1)
    assert environ["PATH"] == "/bin"
    assert environ["MAKEFLAGS"] == "-j1"
    dropped = {"HOROVOD_GPU_OPERATIONS", "HOROVOD_RANK", "MAKELEVEL", "CMAKE_GENERATOR", "CCL_ROOT"}
    assert not dropped & set(environ)


def test_the_recipe_ships_with_the_package() -> None:
    assert (_sdist.FOLDER / "toolchain.cmake").is_file()
    assert (_sdist.FOLDER / "hook.cmake").is_file()


# --- progress and failure ---


def test_progress_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log = io.StringIO()
    lines = ["-- Configuring done\n"]
    lines += [f"  [{percent:3d}%] Building CXX object a.o\n" for percent in range(0, 101, 2)]
    assert _compile.follow(lines, log, PlainProgress()) == lines
    assert log.getvalue() == "".join(lines)
    told = capsys.readouterr().out.splitlines()
    assert told[0].endswith("compiling")
    assert told[-1].endswith("compiling 100 %")
    assert len(told) == 11


def test_the_compilers_own_error_is_shown() -> None:
    told = _sdist.excerpt(GCC_LOG.splitlines())
    assert "fatal error: highwayhash/arch_specific.h" in told
    assert "xla_mpi_ops.cc:25" in told
    assert "/usr/bin/c++" not in told
    assert "Traceback" not in told


def test_a_log_without_an_error_shows_its_end() -> None:
    assert _sdist.excerpt([f"line {n}" for n in range(100)]).splitlines()[-1] == "line 99"


def test_a_failure_names_the_log_and_says_when_memory_ran_out() -> None:
    lines = [
        "c++: fatal error: Killed signal terminated program cc1plus",
        "compilation terminated.",
    ]
    told = str(_sdist.failed("The Horovod build", Path("/cache/build.log"), lines))
    assert "/cache/build.log" in told
    assert "--jobs 1" in told
    assert "Killed signal" in told


# --- the cache ---


def test_where_the_cache_is() -> None:
    assert cache_folder({"DREAM_CACHE": "/c"}) == Path("/c")
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/dream")
    assert cache_folder({}) == Path.home() / ".cache/dream"


def test_a_placed_file_is_whole_and_alone(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_text("content")
    placed = _cache.place(wheel, tmp_path / "cache" / "key")
    assert placed.read_text() == "content"
    assert list(placed.parent.iterdir()) == [placed]
    assert _cache.find(placed.parent) == placed


def test_nothing_cached(tmp_path: Path) -> None:
    assert _cache.find(tmp_path / "none") is None


def _hold(folder: Path, held: Any, release: Any) -> None:
    with _cache.lock(folder, lambda: None):
        held.set()
        release.wait(200)


def test_a_second_build_waits_for_the_first(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(tmp_path, held, release))
    holder.start()
    assert held.wait(200)
    waited: list[bool] = []

    def waiting() -> None:
        waited.append(True)
        release.set()

    with _cache.lock(tmp_path, waiting):
        assert waited == [True]
    holder.join(200)
    assert holder.exitcode == 0


# --- the sdist ---


def test_a_cached_sdist_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"an sdist"
    monkeypatch.setattr(_sdist, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(_sdist, "_download", _refuse)
    (tmp_path / "sdist").mkdir()
    (tmp_path / "sdist" / _sdist.SDIST).write_bytes(content)
    assert _sdist._obtain(tmp_path / "sdist", tmp_path).read_bytes() == content


def test_a_changed_sdist_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sdist, "_download", _refuse)
    (tmp_path / _sdist.SDIST).write_bytes(b"tampered with")
    with pytest.raises(NotInstalled):
        _sdist._obtain(tmp_path, tmp_path)


def _refuse(*_: Path) -> Path:
    raise NotInstalled("no network")


# --- for real ---


@pytest.mark.slow
def test_a_real_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cmake", reason="the extra `horovod` is not installed")
    if not (_status.present_key().torch or _status.present_key().tensorflow):
        pytest.skip("no framework to build for")
    if os.environ.get("DREAM_TEST_BUILD") != "1":
        pytest.skip("minutes of compiling: set DREAM_TEST_BUILD=1")
    monkeypatch.setenv("DREAM_CACHE", str(tmp_path))
    assert build.main(["--no-install"]) == 0
    wheel = _cache.find(tmp_path / "horovod" / str(_status.present_key()))
    assert wheel is not None
    assert wheel.stat().st_size < 3_000_000
