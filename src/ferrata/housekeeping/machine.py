"""Checks of `ferrata doctor` on the machine: environment, processor or GPU, memory, disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ferrata.config.env import check_interpreter, check_versions, declared_versions
from ferrata.housekeeping.doctor import Check, Project
from ferrata.housekeeping.files import human_size

OLDEST = (3, 11)
# Full training holds 16 bytes per parameter (weights, gradients, two moments in float32): 2.2 GB
# for the default model of 135M, without activations.
STATE = 135e6 * 16  # bytes
LITTLE_MEMORY = 2 * STATE
# A default run writes three models of 0.5 GB to models/ and again to DVC's cache, and while it
# trains up to three checkpoints of 1.6 GB (weights, two moments).
LITTLE_DISK = 10e9  # bytes
NO_DISK = 1e9  # bytes


def interpreter(project: Project) -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        yield Check(
            "error",
            "Python",
            f"found {version}, expected {wanted} or newer",
            f"make env PYTHON=python{wanted}",
        )
    check_interpreter(project.root)
    yield Check("ok", "Python", f"{version}, the project's own: {sys.prefix}")


def packages(project: Project) -> Iterator[Check]:
    check_versions(root=project.folder)
    declared = declared_versions(project.folder)
    names = ", ".join(f"{name} {version}" for name, version in declared.items())
    yield Check("ok", "packages", f"as env.yaml says: {names}")


def tools(project: Project) -> Iterator[Check]:
    """git, dvc, and the `python` that a stage would get: DVC starts stages through PATH."""
    git = shutil.which("git")
    if git is None:
        yield Check("error", "git", "not found on PATH", "install git")
    else:
        done = subprocess.run([git, "--version"], capture_output=True, text=True, timeout=20)
        yield Check("ok", "git", done.stdout.strip().removeprefix("git version ") or git)
    activate = "`. ./activate` in this shell"
    try:
        version = metadata.version("dvc")
    except metadata.PackageNotFoundError:
        yield Check("error", "dvc", "not installed in this environment", "make env")
    else:
        place = shutil.which("dvc")
        if place is None:
            yield Check("warning", "dvc", f"{version}, but no `dvc` on PATH", activate)
        elif not _ours(place):
            yield Check(
                "warning", "dvc", f"`dvc` is {place}, not this environment's {version}", activate
            )
        else:
            yield Check("ok", "dvc", version)
    python = shutil.which("python")
    if python is None or not _ours(python):
        yield Check(
            "warning",
            "PATH",
            f"stages run `python`, and that is {python}, not this environment's"
            if python
            else "stages run `python`, and there is none on PATH",
            activate,
        )


def _ours(program: str) -> bool:
    # The program itself is not resolved: a virtual environment's python is a link out of it.
    return Path(program).parent.resolve() == (Path(sys.prefix) / "bin").resolve()


def processor(project: Project) -> Iterator[Check]:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = usable or os.cpu_count() or 1
    quota = processor_quota()
    threads = torch.get_num_threads()
    setting = os.environ.get("OMP_NUM_THREADS")
    said = f"OMP_NUM_THREADS={setting}" if setting else "OMP_NUM_THREADS is not set"
    text = f"{_count(cores, 'core')}; torch uses {_count(threads, 'thread')} ({said})"
    if quota is not None and quota < cores:
        text += f"; this container may use {quota:g} of the cores"
    most = cores if quota is None else min(cores, max(1, int(quota)))
    if threads > most:
        yield Check(
            "warning",
            "processor",
            text + "; more threads than cores wait for each other",
            f"export OMP_NUM_THREADS={most}",
        )
        return
    yield Check("ok", "processor", text)


def processor_quota(folder: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that this container may use at once (cgroup version 2), None where nothing limits."""
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def gpu(project: Project) -> Iterator[Check]:
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            text = f"{found.name}, {human_size(found.total_memory)}"
            yield Check("ok", "GPU", text)
        return
    if os.path.exists("/proc/driver/nvidia/version"):
        reason = "it was built without CUDA" if torch.version.cuda is None else "no device answers"
        yield Check(
            "warning",
            "GPU",
            f"an NVIDIA driver is here, but this torch ({torch.__version__}) cannot use it: "
            f"{reason}",
            "install torch with CUDA of the same version if training is to use the GPU",
        )
        return
    yield Check("ok", "GPU", "none; everything runs on the processor")


def precision(project: Project) -> Iterator[Check]:
    """What `precision: auto` means here, decided as the episode engine decides it."""
    import torch

    from ferrata.episodes.policies import cpu_flags, resolve_dtype

    name = str(resolve_dtype("auto")).removeprefix("torch.")
    if torch.cuda.is_available():
        why = "the GPU multiplies bfloat16" if name == "bfloat16" else "the GPU has no bfloat16"
    else:
        found = sorted({"avx512_bf16", "amx_bf16"} & cpu_flags())
        why = f"the processor has {', '.join(found)}" if found else "no avx512_bf16, no amx_bf16"
    yield Check("ok", "precision", f"auto is {name} ({why})")


def memory(project: Project) -> Iterator[Check]:
    import psutil

    found = psutil.virtual_memory()
    total, free = found.total, found.available
    limit = memory_limit()
    text = f"{human_size(free)} available of {human_size(total)}"
    if limit is not None and limit[0] < total:
        free = min(free, limit[1])
        text += f"; this container may have {human_size(limit[0])}, {human_size(free)} are left"
    if free < LITTLE_MEMORY:
        yield Check(
            "warning",
            "memory",
            f"{text}; full training of the default model takes {human_size(STATE)} for weights, "
            "gradients and optimizer alone",
            "end other programs, or set a smaller batch in sft and rl",
        )
        return
    yield Check("ok", "memory", text)


def memory_limit(folder: Path = Path("/sys/fs/cgroup")) -> tuple[int, int] | None:
    """Bytes that this container may have, and those left of them (cgroup version 2); None: no
    limit."""
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        lines = (folder / "memory.stat").read_text().splitlines()
        cached = dict(line.split() for line in lines).get("inactive_file", "0")
    except (OSError, ValueError):
        return None
    return limit, max(0, limit - used + int(cached))


def disk(project: Project) -> Iterator[Check]:
    found = shutil.disk_usage(project.root)
    text = f"{human_size(found.free)} free of {human_size(found.total)}"
    if found.free >= LITTLE_DISK:
        yield Check("ok", "disk", text)
        return
    yield Check(
        "error" if found.free < NO_DISK else "warning",
        "disk",
        f"{text}; a default run wants {human_size(LITTLE_DISK)}",
        "`ferrata clean`; it also says how DVC's cache and MLflow's records are cleaned",
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
