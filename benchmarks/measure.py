"""Optimizer steps timed in a process of their own.

Each side of a comparison runs in a fresh process, one at a time: neither inherits the other's heap,
threads or patched classes. The process reports every optimizer step as it ends. The clock is a
Trainer callback, the same for both sides: from `on_step_begin` to `on_step_end` lie, for GRPO, the
rollout and all micro-batches, and always the optimizer.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Send = Callable[[Record], None]
TAIL = 25  # lines of a failed process's output that are shown


def in_fresh_process(work: Callable[..., None], *args: Any, progress: Any) -> list[Record]:
    """Run `work(send, *args)` in a new process; returns what it sent, in order.

    Args:
        work: a function of a module; what it and its libraries print is kept out of the terminal.
        progress: a tqdm bar, moved on by one per record.

    Raises:
        SystemExit: the process failed; the end of its output is the message.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    records: list[Record] = []
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = context.Process(target=_child, args=(sender, log.name, work, args))
        process.start()
        sender.close()
        try:
            while True:
                records.append(receiver.recv())
                progress.update()
        except EOFError:  # the process has closed its end
            process.join()
        finally:
            if process.is_alive():
                process.terminate()
                process.join()
        if process.exitcode:
            lines = Path(log.name).read_text(encoding="utf-8", errors="replace").splitlines()
            progress.close()
            raise SystemExit("\n".join([*lines[-TAIL:], f"{work.__name__}{args[:1]} failed"]))
    return records


def _child(sender: Connection, log: str, work: Callable[..., None], args: tuple[Any, ...]) -> None:
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    work(sender.send, *args)
    sender.close()


def step_clock(send: Send, begin: Callable[[], None], details: Callable[[], Record]) -> Any:
    """A Trainer callback that sends `seconds` of every optimizer step, `cores` (that it kept busy,
    on average) and its details.

    Args:
        begin: called when a step begins, before the clock starts.
        details: called when it has ended, after the clock has stopped.
    """
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        start = cpu = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            begin()
            self.start, self.cpu = time.perf_counter(), time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            seconds = time.perf_counter() - self.start
            cores = (time.process_time() - self.cpu) / seconds
            send({"seconds": seconds, "cores": cores, **details()})

    return Clock()
