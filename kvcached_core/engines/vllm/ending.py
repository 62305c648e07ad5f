"""The end of an engine core whose ranks may be processes of their own."""

from __future__ import annotations

import multiprocessing
import signal
import threading

from vllm import envs


def outlive_sigterm() -> None:
    """Called first when an engine core shuts down, in its thread; for the process of whoever uses
    an engine it does nothing.

    vLLM lets the core die of SIGTERM from then on, and its client sends one as soon as it hears
    of a failure, while it is the core that kills ranks which hang, last of all: they would be left,
    with their memory. If the core takes too long, the client kills it and the ranks with SIGKILL.
    """
    if multiprocessing.parent_process() is None or not envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        return
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
