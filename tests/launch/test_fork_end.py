"""How a forked rank ends: as a fresh one, but for frameworks, which are left as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dream.launch.forks.foresight import IMPORTS
from dream.launch.forks.forked import SERVER, Forked, serving

ENDS = {
    "its objects are deleted": """
class Last:
    def __init__(self, name): self.name = name
    def __del__(self): print("deleted", self.name, flush=True)
kept, _hidden = Last("kept"), Last("hidden")
cycle = Last("cycle"); cycle.itself = cycle
def function(held=Last("default")): return kept
""",
    "what others hold is deleted": """
import rich
class Last:
    def __del__(self): print("deleted", flush=True)
held = Last()
def function(): return held
rich.function_of_a_script = function
rich.module_of_a_script = __import__("__main__")
""",
    "what a handler of the script's holds is deleted": """
import signal
class Last:
    def __del__(self): print("deleted", flush=True)
held, _hidden = Last(), Last()
signal.signal(signal.SIGUSR1, lambda *_: held)
""",
    "what stands for the streams": """
import os, sys
class Both:
    def __init__(self, one): self.one, self.other = one, open(sys.argv[1], "w")
    def __del__(self): self.other.write("deleted")
    def write(self, text): self.one.write(text), self.other.write(text)
    def flush(self): self.one.flush(), os.fstat(self.other.fileno())
sys.stdout = Both(sys.stdout)
print("printed")
""",
    "what is registered is called": """
import atexit, weakref
class Some: pass
some = Some()
atexit.register(print, "registered")
weakref.finalize(some, print, "finalized")
""",
    "threads are waited for": """
import threading, time
def late():
    time.sleep(0.2)
    print("late")
threading.Thread(target=late).start()
""",
    "a daemon that still runs says nothing": """
import threading, time
numbers = []
def count():
    while True:
        time.sleep(0.001)
        numbers.append(len(numbers))
threading.Thread(target=count, daemon=True).start()
print("ends")
""",
    "files are written": """
import ctypes, sys
file = open(sys.argv[1], "w")
file.write("of Python")
ctypes.CDLL(None).printf(b"of C\\n")
print("printed", end="")
""",
    "a file that a function names is written": """
import sys
file = open(sys.argv[1], "w")
file.write("written")
def function(): return file
""",
    "a code": "import sys; print('3'); sys.exit(3)",
    "a long code": "import sys; sys.exit(-1)",
    "too long a code": "import sys; sys.exit(2**70)",
    "words": "import sys; sys.exit('words')",
    "an error": "print('before'); 1 / 0",
    "an error at the end": """
import atexit
atexit.register(lambda: 1 / 0)
class Last:
    def __del__(self): raise ValueError("deleted")
last = Last()
""",
}


def ended(script: Path, server: str, imports: str) -> tuple[int, str, str]:
    """Its exit code and what it printed, less addresses and lines of code."""
    file = script.with_suffix(".written")
    out, err = script.with_suffix(".out"), script.with_suffix(".err")
    environ = {**os.environ, IMPORTS: imports, "PYTHONUNBUFFERED": ""}
    with Path(os.devnull).open("rb") as null, out.open("wb") as o, err.open("wb") as e:
        streams = (null.fileno(), o.fileno(), e.fileno())
        command = [str(script), str(file)]
        if server:
            code = Forked(command, {**environ, SERVER: server}, streams, {}).wait()
        else:
            code = subprocess.run([sys.executable, *command], env=environ, stdin=null, stdout=o,
                                  stderr=e, timeout=100, check=False).returncode  # fmt: skip
    written = file.read_text() if file.exists() else ""
    said = re.sub(" at 0x[0-9a-f]+", "", err.read_text())
    lines = [line for line in said.splitlines() if not line.startswith(" ")]
    return code, out.read_text() + written, "\n".join(lines)


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_script_ends_as_in_an_interpreter_of_its_own(text: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    fresh = ended(script, "", "rich")
    with serving() as server:
        assert ended(script, server, "rich") == fresh
    assert any(fresh), "the script shows nothing"


FRAMEWORK = """
import weakref
class Held: pass
weakref.finalize(Held, print, "taken apart")
"""


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("import framework", False),
        ("import framework, sys; sys.exit(1)", False),
        pytest.param("import framework, markupsafe._speedups", True, id="compiled"),
        pytest.param(
            "import framework, threading, time\n"
            "def sleep():\n  while True: time.sleep(0.001)\n"
            "threading.Thread(target=sleep, daemon=True).start()", True, id="a daemon",
        ),
    ],
)  # fmt: skip
def test_a_framework_is_not_taken_apart(text: str, apart: bool, tmp_path: Path) -> None:
    """Save where Python itself has to end the process."""
    (tmp_path / "framework.py").write_text(FRAMEWORK)
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "script.py"
    script.write_text(text)
    with serving() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        code, said, errors = ended(script, server, "framework")
    assert (code, errors) == (int("exit" in text), "")
    assert said == "taken apart\n" * apart


@pytest.mark.parametrize("imports", ["", "rich"])
def test_what_cannot_be_written_is_an_error_as_in_python(imports: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('lost')")
    environ = {**os.environ, IMPORTS: imports, "PYTHONUNBUFFERED": ""}
    reads, writes = os.pipe()
    os.close(reads)
    with serving() as server, Path(os.devnull).open("r+b") as null:
        streams = (null.fileno(), writes, null.fileno())
        if imports:
            code = Forked([str(script)], {**environ, SERVER: server}, streams, {}).wait()
        else:
            code = subprocess.run([sys.executable, script], env=environ, stdout=writes,
                                  stderr=null, check=False).returncode  # fmt: skip
    os.close(writes)
    assert code == 120
