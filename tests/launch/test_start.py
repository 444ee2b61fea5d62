"""A job that is stopped from outside: what its ranks still may do."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from launch_scripts import DREAM, gone, launched, wait_for, write

OLD_GRACE = 2.5
"""Seconds: more than a rank is given after a failure."""


def test_ranks_save_what_they_have_before_they_go(tmp_path: Path) -> None:
    """And their children are there for as long."""
    body = """
child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def save(*_):
    mark('asked')
    wait_for_mark('go')
    print(child.communicate(b'saved')[0].decode(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
mark('ready')
while True: time.sleep(0.1)
"""
    script = write(tmp_path, body)
    with launched("run", "-n", "1", "--grace", "300", script) as launcher:
        wait_for([Path(f"{script}.ready")])
        launcher.send_signal(signal.SIGTERM)
        wait_for([Path(f"{script}.asked")])
        time.sleep(OLD_GRACE)
        Path(f"{script}.go").write_text("go")
        out, err = launcher.communicate(timeout=120)
    assert (launcher.returncode, out) == (143, "saved\n")
    assert "may take 300 s (--grace)" in err
    assert "Stopped by SIGTERM. Ended with it: rank 0." in err


def test_who_does_not_go_is_killed_when_the_grace_is_over(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmark(rank)\ntime.sleep(600)\n"
    script = write(tmp_path, body)
    with launched("run", "-n", "2", "--grace", "0.5", script) as launcher:
        told = [Path(f"{script}.{rank}") for rank in range(2)]
        wait_for(told)
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(120) == 143
    assert gone([int(file.read_text()) for file in told])


def test_ctrl_c_reaches_ranks_as_python_has_it(tmp_path: Path) -> None:
    body = """
mark('ready')
try: time.sleep(600)
except KeyboardInterrupt: print('saved')
"""
    script = write(tmp_path, body)
    with launched("run", "-n", "1", script) as launcher:
        wait_for([Path(f"{script}.ready")])
        launcher.send_signal(signal.SIGINT)
        out, _ = launcher.communicate(timeout=120)
    assert (launcher.returncode, out) == (130, "saved\n")


def test_a_second_ctrl_c_ends_the_grace(tmp_path: Path) -> None:
    body = """
def stay(*_):
    mark('asked')
    while True: time.sleep(0.1)
signal.signal(signal.SIGINT, stay)
mark('ready')
time.sleep(600)
"""
    script = write(tmp_path, body)
    with launched("run", "-n", "1", "--grace", "100000", script) as launcher:
        wait_for([Path(f"{script}.ready")])
        launcher.send_signal(signal.SIGINT)
        wait_for([Path(f"{script}.asked")])
        launcher.send_signal(signal.SIGTERM)  # says nothing new
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(120) == 130
    assert gone([int(Path(f"{script}.asked").read_text())])


def test_nohup_is_heeded(tmp_path: Path) -> None:
    script = write(tmp_path, "mark('ready')\nwait_for_mark('go')\n")
    command = ["nohup", *DREAM, "run", "-n", "1", script]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as launcher:
        wait_for([Path(f"{script}.ready")])
        launcher.send_signal(signal.SIGHUP)
        Path(f"{script}.go").write_text("go")
        assert launcher.wait(120) == 0


def test_an_interrupted_notebook_gives_the_same_grace(tmp_path: Path) -> None:
    body = """
import dream

def train(file):
    with open(file, 'w') as said: said.write('ready')
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        with open(file + '.saved', 'w') as said: said.write('saved')

if __name__ == '__main__':
    dream.launch(train, sys.argv[0] + '.ready', n=1)
"""
    script = tmp_path / "notebook.py"
    script.write_text(f"import sys, time\n{body}")
    with subprocess.Popen(
        [sys.executable, str(script)],
        stderr=subprocess.PIPE,
        text=True,
        # a shell's jobs in the background ignore it, and so would theirs
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as notebook:
        wait_for([Path(f"{script}.ready")])
        notebook.send_signal(signal.SIGINT)
        assert notebook.communicate(timeout=120)[1].endswith("KeyboardInterrupt\n")
    assert Path(f"{script}.ready.saved").read_text() == "saved"
