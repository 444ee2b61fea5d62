"""Two workers that know of one another by TF_CONFIG alone, as in TensorFlow's own tutorials: no
launcher. On several hosts each has the task of its own index, and all have one DREAM_TOKEN.

python examples/tf_config.py                     both workers, here
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "digits_keras.py"


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
started = []
for index in range(len(workers)):
    task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
    environ = {**os.environ, "TF_CONFIG": json.dumps(task), "KERAS_BACKEND": "tensorflow"}
    environ["DREAM_STRATEGY"] = "multi_worker_mirrored"  # in place of the script's word
    quiet = None if index == 0 else subprocess.DEVNULL  # every worker prints the same
    started.append(subprocess.Popen([sys.executable, SCRIPT], env=environ, stdout=quiet))
sys.exit(max(worker.wait() for worker in started))
