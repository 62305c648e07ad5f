"""Counts the system calls that a thread makes between two markers, by ptrace: needs no program.

The traced thread marks the begin and the end of what is of interest with mark(), itself a system
call that nothing else here makes. Linux 5.3 or later.

    counter = Counter()          # attaches to the calling thread
    counter.mark(); ...; counter.mark()
    found = counter.stop()       # {"marks": 2, "calls": {"9": 1}, "interpreter_lock": 0}

`calls` counts by the call's number. Not in it, but in `interpreter_lock`: futexes on words of the
interpreter's own state, by which threads of Python hand its lock to each other at any bytecode.

Run as a program it is the tracer: a process of its own, since a thread cannot trace its process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections import Counter as Tally
from pathlib import Path
from typing import Any

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.restype = ctypes.c_long
_LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

# linux/ptrace.h, linux/prctl.h
_SYSCALL, _DETACH, _SEIZE, _INTERRUPT, _SYSCALL_INFO = 24, 17, 0x4206, 0x4207, 0x420E
_TRACESYSGOOD = 1
_ENTRY = 1
_SET_PTRACER = 0x59616D61
_WALL = 0x40000000
# By the machine's own numbers: getppid and getsid, the two calls that mark, and futex.
_NUMBERS = {"x86_64": (110, 124, 202), "aarch64": (173, 156, 98)}


class Counter:
    """Traces the calling thread from construction until stop()."""

    def __init__(self) -> None:
        self._tracer = subprocess.Popen(
            [sys.executable, __file__, str(threading.get_native_id()), *map(str, _runtime())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._tracer.stdin is not None and self._tracer.stdout is not None
        _LIBC.prctl(_SET_PTRACER, self._tracer.pid, 0, 0, 0)  # fails where nothing forbids it
        self._tracer.stdin.write("go\n")
        self._tracer.stdin.flush()
        said = self._tracer.stdout.readline()
        assert said == "attached\n", f"the tracer could not attach: {said!r}"

    @staticmethod
    def mark() -> None:
        """A begin and an end in turn."""
        os.getppid()

    def stop(self) -> dict[str, Any]:
        os.getsid(0)  # the tracer detaches
        out, _ = self._tracer.communicate(timeout=60)
        found: dict[str, Any] = json.loads(out)
        return found


def _ptrace(request: int, thread: int, address: Any, data: Any) -> int:
    done = int(_LIBC.ptrace(request, thread, address, data))
    if done < 0:
        raise OSError(
            ctypes.get_errno(), f"ptrace({request:#x}): {os.strerror(ctypes.get_errno())}"
        )
    return done


def _runtime() -> tuple[int, int]:
    """From the interpreter's state to the end of the variables that it is among: addresses."""
    start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    end = start
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= end < last:  # the next one is its zeros, if it begins where this one ends
            end = last
    return start, end


def _call_at_entry(thread: int) -> tuple[int, int] | None:
    """Number and first argument of the call that the stopped thread enters; None if it leaves."""
    info = ctypes.create_string_buffer(88)
    _ptrace(_SYSCALL_INFO, thread, len(info), info)
    return struct.unpack_from("<QQ", info, 24) if info.raw[0] == _ENTRY else None


def trace(thread: int, runtime: range) -> dict[str, Any]:
    mark, end, futex = _NUMBERS[os.uname().machine]
    inside, marks, calls, lock = False, 0, Tally[str](), 0
    deliver = 0
    while True:
        _ptrace(_SYSCALL, thread, None, deliver)
        _, status = os.waitpid(thread, _WALL)
        if not os.WIFSTOPPED(status):
            return {"marks": marks, "calls": calls, "interpreter_lock": lock, "ended": True}
        stop = os.WSTOPSIG(status)
        deliver = 0
        if stop != signal.SIGTRAP | 0x80:
            deliver = 0 if status >> 16 or stop == signal.SIGTRAP else stop
            continue
        call = _call_at_entry(thread)
        if call is None:
            continue
        number, argument = call
        if number == end:
            _ptrace(_DETACH, thread, None, 0)
            return {"marks": marks, "calls": calls, "interpreter_lock": lock}
        if number == mark:
            marks, inside = marks + 1, not inside
        elif inside and number == futex and argument in runtime:
            lock += 1
        elif inside:
            calls[str(number)] += 1


def main() -> None:
    thread = int(sys.argv[1])
    sys.stdin.readline()
    _ptrace(_SEIZE, thread, None, _TRACESYSGOOD)
    _ptrace(_INTERRUPT, thread, None, None)
    os.waitpid(thread, _WALL)
    print("attached", flush=True)
    print(json.dumps(trace(thread, range(*map(int, sys.argv[2:4])))), flush=True)


if __name__ == "__main__":
    main()
