"""Whether a job's ranks are forked from a parent that has imported their framework, and that
parent's server for as long as the job runs, its restarts too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dream.cluster import settings
from dream.cluster.nodes import gpus_here
from dream.launch.forks.foresight import foresee
from dream.launch.forks.forked import SERVER, serving
from dream.launch.job import Job
from dream.launch.output import SCREEN
from dream.launch.process import CHILD


@contextmanager
def warm(job: Job) -> Iterator[Job]:
    """Yield the job, which finds a fork server in its environment for the block's length; without
    one where ranks start fresh, which `--verbose` says."""
    environ = {name: text for name, text in job.environ.items() if name != SERVER}
    given = job.environ.get(SERVER)
    asked = fresh_by_request(job)
    why = asked or ("" if given else _why_fresh(job))
    if why:
        if job.verbose:
            SCREEN.say(f"Every rank starts a fresh interpreter (slower): {why}.")
        yield replace(job, environ=environ)
    elif given:
        yield job
    else:
        with serving() as server:
            yield replace(job, environ={**environ, SERVER: server})


def fresh_by_request(job: Job) -> str:
    """Say who asked for fresh ranks; empty where nobody did."""
    if not job.warm:
        return "--no-warm"
    return f"{settings.WARM}=0" if job.environ.get(settings.WARM) == "0" else ""


def _why_fresh(job: Job) -> str:
    if not hasattr(os, "pidfd_open"):
        return "the system is not Linux"
    if job.n == 1 and not (job.max_restarts or job.hosts_change):
        return "one rank has nobody to share an import with"
    if gpus_here(job.environ):
        return "this host has GPUs, which a parent of ranks may not touch"
    framework = {settings.FRAMEWORK: job.frameworks[0]} if job.frameworks else {}
    if not foresee([CHILD, *job.command], {**job.environ, **framework}).modules:
        return "no framework is named in the script, nor by --framework"
    return ""
