"""Where the ranks of an engine meet: its segment, its board, its sockets."""

from __future__ import annotations

import uuid
from pathlib import Path

from kvcached_core.budget import Rank, create_segment, remove_segment, sockets_folder
from kvcached_core.engines.sglang.ranks.board import Board
from kvcached_core.engines.sglang.ranks.board_file import forget
from kvcached_core.engines.sglang.ranks.team import Team
from kvcached_core.txn.transport import Hello, RankServer


class Place:
    """The first rank makes it, and removes it with the segment."""

    def __init__(self, team: Team, directory: Path, instance: str, pages: int) -> None:
        """All ranks are here. Raises RuntimeError, among it for a name that is taken."""
        self._team = team
        self._instance = instance
        self._made: Board | None = None

        def make() -> bytes:
            segment = create_segment(directory, instance, pages, team.size)
            start = uuid.uuid4().hex if team.size > 1 else ""
            try:
                if start:
                    self._made = Board.make(_board(segment, start), team.size, pages)
            except BaseException:
                remove_segment(segment)
                raise
            return f"{start}\n{segment}".encode()

        start, segment = team.lead(make).decode().split("\n", 1)
        self.segment = Path(segment)
        self.start = start
        """Unique for this start, where there are several ranks; else empty."""

    def board(self) -> Board | None:
        """This rank's view, where there are several. Raises what Board does."""
        if not self.start or self._made is not None:
            return self._made
        return Board.open(_board(self.segment, self.start), self._team.rank, self._team.size)

    def forget_board(self) -> None:
        """All ranks have opened it. Raises BoardError."""
        if self._made is not None:
            forget(_board(self.segment, self.start))

    def listen(self, rank: Rank) -> RankServer:
        """Raises RuntimeError, with the folder at fault."""
        me = Hello(self._instance, self.start, self._team.rank)
        folder = sockets_folder(self.segment)
        try:
            return RankServer(folder, me, rank)
        except OSError as error:
            raise RuntimeError(
                f"rank {me.rank} cannot listen in {folder}: {error.strerror or error}; free some "
                "space there or name another budget_dir, and start the engine again"
            ) from None


def _board(segment: Path, start: str) -> Path:
    return sockets_folder(segment) / f"{start}.board"
