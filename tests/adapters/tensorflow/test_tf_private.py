"""What TensorFlow does not document and dream uses, as TensorFlow 2.21 has it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ADAPTER = Path(__file__).parents[3] / "adapters" / "tensorflow"
HERE = [
    path
    for path in sorted(ADAPTER.rglob("*.py"))
    if not {"keras", "tools"} & set(path.relative_to(ADAPTER).parts)
]
SEEN_IN = "2.21"
LOOK = """
import inspect, json, os, threading
os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
import tensorflow as tf
from dream.adapters.tensorflow import private
from dream.adapters.tensorflow.parallel.sharding import dtensor

def waiting():
    inner = tf.function(lambda: tf.py_function(stack, [], tf.int32))
    inner()

def stack():
    import sys
    frames = [f for t, f in sys._current_frames().items() if t == caller.ident]
    while frames and frames[0]:
        files.append(frames[0].f_code.co_filename)
        frames[0] = frames[0].f_back
    return 0

files = []
caller = threading.Thread(target=waiting)
caller.start(); caller.join()
from pathlib import Path
from dream.adapters.keras.hooks import PHASE_RULES
def lost(rule):
    place = Path(rule.place)
    files = list(place.rglob("*.py")) if place.is_dir() else [place]
    text = "".join(file.read_text() for file in files if file.exists())
    return not text or any(f"def {name}(" not in text for name in rule.functions)
lines = tf.data.TextLineDataset(["a"])
print(json.dumps({
    "phases": [str(rule) for rule in (*private.phases(), *PHASE_RULES) if lost(rule)],
    "parts": private.parts_of(tf.data.TextLineDataset(["a"]).map(lambda x: x).batch(2)),
    "batches": [private.batch_of(each) for each in (
        lines.batch(8),
        lines.batch(8).cache().repeat().shuffle(4).take(3).skip(1).map(lambda x: x).prefetch(1),
        lines.batch(8).unbatch(),
    )],
    "own": len(list(private.files_of_rank(tf.data.TextLineDataset([tf.__file__] * 3), 3, 1))) > 0,
    "release": tf.__version__,
    "waits": sorted({f.rsplit("/", 1)[1] for f in files if f in private.waiting_files()}),
    "resource": isinstance(tf.Variable(1.0), private.ResourceVariable),
    "library": private.LIBRARY in open("/proc/self/maps").read(),
    "scheduled": "self._being_scheduled = False" in inspect.getsource(
        inspect.getmodule(tf.distribute.ParameterServerStrategy)
    ),
    "quiet": "TF_CPP_MIN_LOG_LEVEL" not in os.environ and private.log_no_information(),
    "lost": [name for name in dtensor.NAMES if not hasattr(dtensor._dtensor, name)],
}))
"""


@pytest.mark.slow
def test_tensorflow_has_what_dream_names() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("waits"), f"no wait is seen in {found['release']}"
    assert found == {
        "release": found["release"],
        "resource": True,
        "library": True,
        "scheduled": True,
        "quiet": True,
        "parts": [
            ["Batch", None],
            ["Map", None],
            ["TextLineDatasetV2", None],
            ["TensorSlice", ["a"]],
        ],
        "batches": [8, 8, None],
        "own": True,
        "lost": [],
        "phases": [],
    }, f"names were read off TensorFlow {SEEN_IN}"


def test_only_private_reaches_inside_tensorflow() -> None:
    """By import, by attribute, or by the name of a file."""
    for path in HERE:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                inside = (node.module or "").startswith("tensorflow.python")
                assert not inside or path.name == "private.py", path
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                of_theirs = isinstance(node.value, ast.Name) and node.value.id == "tf"
                assert not of_theirs or path.name == "private.py", path
        assert path.name == "private.py" or "tf.__file__" not in text, path


def test_only_hooks_assigns_to_tensorflow() -> None:
    for path in HERE:
        for node in ast.walk(ast.parse(path.read_text())):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                while isinstance(target, ast.Attribute):
                    target = target.value
                    of_theirs = isinstance(target, ast.Name) and target.id in ("tf", "keras")
                    assert not of_theirs or path.name == "hooks.py", path
