"""Kubeflow Trainer is told how far a job is, at the address that it gives, by rank 0 alone."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import environ
from pathlib import Path
from typing import Any

import pytest

from dream.cluster.kubeflow import CERTIFICATE, TOKEN, URL

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificate"
)
SCRIPT = """
import torch
import dream

with dream.strategy("mirrored"):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(torch.ones(12, 2), batch_size=4):
        model(x).mean().backward()
        optimizer.step()
"""


@contextmanager
def server(folder: Path, status: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the address of one that answers with `status`, over TLS by a certificate of its own,
    and what it is told."""
    told: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append({"token": self.headers["Authorization"], **json.loads(body)})
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            del args

    made = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", f"{folder / 'key.pem'}", "-out", f"{folder / 'ca.pem'}",
    ]  # fmt: skip
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.socket = context.wrap_socket(serving.socket, server_side=True)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{serving.server_port}/status", told
    finally:
        serving.shutdown()
        serving.server_close()


def run(folder: Path, url: str) -> str:
    script, token = folder / "script.py", folder / "token"
    script.write_text(SCRIPT)
    token.write_text("secret\n")
    names = {URL: url, TOKEN: str(token), CERTIFICATE: str(folder / "ca.pem")}
    done = subprocess.run(
        [sys.executable, "-m", "dream", "run", "-n", "2", str(script)],
        cwd=folder, env={**environ, **names, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_address_is_told_of_steps(tmp_path: Path) -> None:
    with server(tmp_path, 200) as (url, told):
        said = run(tmp_path, url)
    (last,) = told  # at the end, and by one rank
    metrics = {each["name"]: each["value"] for each in last["trainerStatus"]["metrics"]}
    assert last["token"] == "Bearer secret"
    assert metrics["step"] == "3"
    assert "Kubeflow" not in said


def test_an_address_that_refuses_ends_nothing(tmp_path: Path) -> None:
    with server(tmp_path, 403) as (url, _):
        said = run(tmp_path, url)
    assert said.count("Kubeflow Trainer is not told how far the job is") == 1
    assert "403" in said
