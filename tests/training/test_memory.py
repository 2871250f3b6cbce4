"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import resource, sys, torch
from ferrata.training.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    assert keep_freed_memory()
print(*(faults() for _ in range(12)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_large_arrays_come_from_memory_that_was_freed() -> None:
    source = str(Path(__file__).parents[2] / "src")

    def run(mode: str) -> list[int]:
        command = [
            sys.executable,
            "-c",
            f"import sys\nsys.path.insert(0, {source!r})\n{CODE}",
            mode,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    plain, kept = run("plain"), run("keep")
    # How often the heap has a fitting hole depends on its layout; without the setting, never.
    assert min(plain) > 10
    assert sum(kept) < sum(plain)
