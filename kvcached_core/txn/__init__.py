"""How several ranks come to own pages, and to give them back, all or none: two-phase commit.

The machines are pure: events in, outputs out, time is a tick. docs/transactions.md is the
specification that tests/txn checks.
"""

from .coordinator import Coordinator, Heard, Send, Terms
from .messages import (
    MAX_PAGES,
    Abort,
    Attempt,
    Attempted,
    Begin,
    Commit,
    Done,
    Ended,
    Failed,
    Fenced,
    Prepare,
    ProtocolError,
    RankGone,
    Settle,
    Settled,
    Tick,
    Vote,
)
from .participant import Entry, Participant

__all__ = [
    "MAX_PAGES",
    "Abort",
    "Attempt",
    "Attempted",
    "Begin",
    "Commit",
    "Coordinator",
    "Done",
    "Ended",
    "Entry",
    "Failed",
    "Fenced",
    "Heard",
    "Participant",
    "Prepare",
    "ProtocolError",
    "RankGone",
    "Send",
    "Settle",
    "Settled",
    "Terms",
    "Tick",
    "Vote",
]
