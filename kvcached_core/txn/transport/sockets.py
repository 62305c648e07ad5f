"""Sockets of an instance's ranks: where they lie, who may speak through them.

They keep packets whole and in order (SOCK_SEQPACKET) and lie in a folder of the instance's own,
mode 0700. A name holds the rank and the start of the instance: nothing reaches a namesake's.
Paths go through a descriptor of the folder, since the kernel takes 107 bytes of a path only. A
forked child keeps none of them.
"""

from __future__ import annotations

import os
import socket
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .wire import MAX_BYTES

_CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: pid, user, group
# Beside the coordinator others of the user's may knock, and a rank that is stopped accepts nobody.
_BACKLOG = 16
_KNOCK_S = 0.01
_opened: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def listen(folder: Path, rank: int, start: str) -> socket.socket:
    """A listener that the instance's user may connect to. Makes the folder if need be. Raises
    OSError, among it for a name that is taken."""
    folder.mkdir(mode=0o700, exist_ok=True)
    listener = _socket()
    with _short(folder) as short:
        listener.bind(str(short / _name(rank, start)))
    listener.listen(_BACKLOG)
    return listener


def unlink(folder: Path, rank: int, start: str) -> None:
    """Removes a listener's name. The folder, in which a namesake may be about to listen, goes with
    its segment."""
    (folder / _name(rank, start)).unlink(missing_ok=True)


def accept(listener: socket.socket) -> socket.socket | None:
    """The next who waits, if it is of this user."""
    with suppress(BlockingIOError):
        peer = _keep(listener.accept()[0])
        if _is_ours(peer):
            return peer
        peer.close()
    return None


def connect(folder: Path, rank: int, start: str, patience: float = 0) -> socket.socket:
    """Waits so many seconds for a listener before whom too many wait. Raises OSError:
    FileNotFoundError and ConnectionRefusedError where nobody listens, PermissionError where another
    user does, BlockingIOError after the wait."""
    ours = _socket()
    end = time.monotonic() + patience
    try:
        with _short(folder) as short:
            while not _knock(ours, short / _name(rank, start), last=time.monotonic() >= end):
                time.sleep(_KNOCK_S)
        if not _is_ours(ours):
            raise PermissionError(f"another user listens at {folder / _name(rank, start)}")
    except BaseException:
        ours.close()
        raise
    return ours


def _knock(ours: socket.socket, name: Path, *, last: bool) -> bool:
    """False if too many wait there; raises BlockingIOError then if it is the last try."""
    try:
        ours.connect(str(name))
    except BlockingIOError:
        if last:
            raise
        return False
    return True


def send(peer: socket.socket, packet: bytes) -> bool:
    """False if it does not go now, or never: it is lost, as packets may be."""
    try:
        peer.send(packet, socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def receive(peer: socket.socket) -> bytes | None:
    """The next packet, empty at the end of the connection; None if there is none now. One that is
    too long comes too long, so that whoever decodes it refuses it."""
    try:
        return peer.recv(MAX_BYTES + 1)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _name(rank: int, start: str) -> str:
    return f"{rank}-{start}.socket"


def _socket() -> socket.socket:
    return _keep(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))


def _keep(made: socket.socket) -> socket.socket:
    made.setblocking(False)
    _opened.add(made)
    return made


def _is_ours(peer: socket.socket) -> bool:
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return bool(user == os.geteuid())


@contextmanager
def _short(folder: Path) -> Iterator[Path]:
    """A short path of the folder; raises OSError if it is another's, or a link."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(folder, flags)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(
                f"{folder} belongs to user {found.st_uid} with mode {found.st_mode & 0o777:o}; it "
                f"must belong to user {os.geteuid()} with mode 700"
            )
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _let_go_in_child() -> None:
    for made in list(_opened):
        made.close()


os.register_at_fork(after_in_child=_let_go_in_child)
