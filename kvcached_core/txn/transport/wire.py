"""Messages as bytes: MessagePack, one a packet, each of bounded size."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from kvcached_core.txn.messages import Abort, Commit, Done, Prepare, ToCoordinator, ToRank, Vote

VERSION = 1
MAX_BYTES = 64 * 1024
"""Two lists of MAX_PAGES ids, five bytes each, and the rest."""

Text: TypeAlias = Annotated[str, Meta(max_length=1024)]


class Hello(Struct, frozen=True, tag="hello", array_like=True, forbid_unknown_fields=True):
    """The first packet each way: who is meant, and who answers. Both sides must say the same."""

    instance: Text
    start: Text
    """Unique for each start of the instance."""
    rank: int
    version: int = VERSION


class Farewell(Struct, frozen=True, tag="farewell", array_like=True, forbid_unknown_fields=True):
    """A rank's last packet: it can take part no longer."""

    reason: Text


class BadPacket(Exception):
    """Nothing that a peer of this release sends."""


_ENCODER = msgspec.msgpack.Encoder()
_TO_RANK: Any = msgspec.msgpack.Decoder(Hello | Prepare | Commit | Abort)
_TO_COORDINATOR: Any = msgspec.msgpack.Decoder(Hello | Farewell | Vote | Done)


def encode(message: Struct) -> bytes:
    return _ENCODER.encode(message)


def decode_at_rank(packet: bytes) -> Hello | ToRank:
    """Raises BadPacket."""
    found: Hello | ToRank = _decode(_TO_RANK, packet)
    return found


def decode_at_coordinator(packet: bytes) -> Hello | Farewell | ToCoordinator:
    """Raises BadPacket."""
    found: Hello | Farewell | ToCoordinator = _decode(_TO_COORDINATOR, packet)
    return found


def _decode(decoder: Any, packet: bytes) -> Any:
    if len(packet) > MAX_BYTES:
        raise BadPacket(f"a packet of more than {MAX_BYTES} bytes")
    try:
        return decoder.decode(packet)
    except msgspec.MsgspecError as error:
        raise BadPacket(f"a packet of {len(packet)} bytes that is no message: {error}") from None
