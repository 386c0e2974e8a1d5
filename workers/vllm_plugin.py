"""Runs inside vLLM's own processes: the engine goes when its worker goes, compiles a grammar once, and survives seeds.

vLLM's engine process outlives a parent that was killed, and keeps its GPU memory (seen with 0.32.0: SIGKILL of the
front end left `VLLM::EngineCore` running). vLLM loads the entry points of `vllm.general_plugins` in each of its
processes, so that this can look after it from within.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

from headrace.workers.vllm_grammars import compile_guidance_once
from headrace.workers.vllm_seeds import keep_seeds_on_cpus

PARENT = "HEADRACE_ENGINE_PARENT"  # the process id of the worker that starts the engine
LOOK_EVERY_S = 0.5


def begin() -> None:
    """What vLLM calls as each of its processes starts. Returns at once."""
    end_with_worker()
    if "vllm.v1.engine.core" in sys.modules:  # elsewhere nothing is compiled, and the import takes seconds
        compile_guidance_once()
    if "vllm.v1.worker.worker_base" in sys.modules:  # as in every process that a model runs in
        keep_seeds_on_cpus()


def end_with_worker() -> None:
    """Watch for the end of the worker, if this process is one that it started."""
    parent = os.getppid()
    if os.environ.get(PARENT) == str(parent):
        # A terminal's Ctrl-C goes to the whole process group: it is the worker's to answer, by finishing what is in
        # flight; the engine would die of it at once, and everything in it be suspect.
        with contextlib.suppress(OSError):  # a leader of a session has a group of its own already
            os.setpgid(0, 0)
        threading.Thread(target=_watch, args=(parent,), name="headrace-parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)
    os._exit(1)  # nobody is left whom it could tell
