"""Training in several processes: `accelerate launch` by parameter, with the same stage scripts.

Every process plays its own share of a step's tasks and trains on them; gradients are averaged by
torch. In-process generation needs no exchange between processes, so episodes of different lengths
cannot make one wait inside another's turn. Process 0 alone writes files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ferrata.config.launch import LaunchParams
from ferrata.errors import FerrataError

_T = TypeVar("_T")


def processes() -> int:
    """How many processes train together; as torch's launchers tell each of them."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def rank() -> int:
    """Number of this process among them, from 0."""
    return int(os.environ.get("RANK") or 0)


def relaunch(params: LaunchParams, script: str, folder: Path) -> int | None:
    """Run a stage script in several processes, if that is asked for and not yet so.

    Args:
        script: the stage's own file.
        folder: where a relative `launch.config` is looked up.

    Returns:
        None where this process is to do the work itself, else the exit status of the launched ones.

    Raises:
        FerrataError: the configuration file is missing, or the stage was launched by hand with
            another number of processes.
    """
    started = processes()
    if "WORLD_SIZE" in os.environ:
        if started != params.processes:
            raise FerrataError(
                "launch.processes",
                found=f"{params.processes}, and {started} processes were started",
                expected="the same number",
                hint="start the stage with `dvc repro`, or set launch.processes",
            )
        return None
    if params.processes == 1:
        return None
    threads = max(1, (os.cpu_count() or 1) // params.processes)
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    command = launch_command(params, script, folder)
    return subprocess.run(command, env=environment, check=False).returncode


def launch_command(params: LaunchParams, script: str, folder: Path) -> list[str]:
    """The command that runs a script in `launch.processes` processes."""
    import torch

    command = [sys.executable, "-P", "-m", "accelerate.commands.launch"]
    command += ["--num_processes", str(params.processes)]
    if params.config is not None:
        config = folder / params.config
        if not config.is_file():
            raise FerrataError(
                "launch.config",
                found=f"no file {config}",
                expected="accelerate's configuration",
                hint="write one with `accelerate config --config_file FILE`",
            )
        return [*command, "--config_file", str(config), script]
    if torch.cuda.is_available():
        command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        return [*command, "--multi_gpu", script]
    # On processors accelerate's launcher asks for MPI; on GPUs it is torch's launcher that it runs.
    command = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
    return [*command, "--nproc_per_node", str(params.processes), script]


def from_main(make: Callable[[], _T]) -> _T:
    """What process 0 makes, in every process; must be called by all of them after the trainer (and
    so the process group) is made."""
    if processes() == 1:
        return make()
    from accelerate.utils import broadcast_object_list

    box: list[Any] = [make() if rank() == 0 else None]
    broadcast_object_list(box)
    made: _T = box[0]
    return made


def gather(values: Sequence[_T]) -> list[_T]:
    """The values of all processes, one after the other."""
    if processes() == 1:
        return list(values)
    from accelerate.utils import gather_object

    gathered: list[_T] = gather_object(list(values))
    return gathered
