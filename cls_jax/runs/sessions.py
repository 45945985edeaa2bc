"""The sessions of a run, with command, time, versions and hardware: `sessions.jsonl`."""

import datetime
import importlib.metadata
import json
import pathlib
import platform
import shlex
import sys
from typing import Any

import jax

from cls_jax.io import MAX_JSON_BYTES, parse_json, read_bytes, write_atomically
from cls_jax.parallel.cpus import available_cpus

SESSIONS = "sessions.jsonl"
_PACKAGES = ("cls-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def record_session(workdir: pathlib.Path, first_step: int) -> None:
    """Appends this process's session, which starts with `first_step`, to those of the run."""
    sessions = [*read_sessions(workdir), describe_session(first_step)]
    lines = (json.dumps(session) + "\n" for session in sessions)
    write_atomically(workdir / SESSIONS, "".join(lines))


def read_sessions(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The sessions of a run, oldest first; damaged lines are left out."""
    try:
        lines = read_bytes(workdir / SESSIONS, MAX_JSON_BYTES).decode("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    sessions = []
    for line in lines:
        try:
            session = parse_json(line)
        except ValueError:
            continue
        if isinstance(session, dict):
            sessions.append(session)
    return sessions


def describe_session(first_step: int) -> dict[str, Any]:
    """Command, start time, versions and hardware of this process, as JSON."""
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "first_step": first_step,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "hardware": describe_hardware(),
        "num_processes": jax.process_count(),
        "versions": {"python": platform.python_version(), **_read_versions()},
    }


def describe_hardware() -> str:
    """The devices in words; for a CPU its cores, since its devices are virtual."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return f"{available_cpus()} cores of {_read_processor()}"
    return f"{jax.device_count()} x {device.device_kind}"


def _read_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # The project itself, where it runs from its source.
    return versions


def _read_processor() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
