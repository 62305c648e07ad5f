"""Records what the engine asks of its block pool, where the setting `allocation_log` names a file.

The queue that records is another class than the one that does not, so that an engine without the
setting pays nothing. A file that cannot be written any more ends the recording, never the serving.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from kvcached_core.config import format_size
from kvcached_core.engines.vllm.log import logger
from kvcached_core.engines.vllm.queue import LedgerQueue
from kvcached_core.instance.plan import StoragePlan
from kvcached_core.pool import Ledger
from kvcached_core.pool.allocation_log import Header, LogWriter

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

# A day of a busy engine; a log that nobody stops must not fill the disk.
MOST_BYTES = 4 << 30


def log_path(given: str, instance: str) -> Path:
    """Where an engine records: replicas of a data-parallel one, `name/dpN`, in files apart."""
    _, replica, number = instance.rpartition("/dp")
    return Path(f"{given}.dp{number}" if replica else given)


class Recorder:
    """One recording. All calls come from the engine core's thread."""

    def __init__(self, path: Path, plan: StoragePlan) -> None:
        """Makes the file. Raises ValueError, naming the key, if it exists or cannot be made."""
        header = Header(
            num_blocks=plan.num_blocks,
            blocks_per_page=plan.blocks_per_page,
            page_bytes=plan.page_bytes,
            reserve_pages=plan.settings.reserve_pages,
            prefix_bound=plan.settings.prefix_bound,
        )
        self.path = path
        try:
            # Unbuffered: LogWriter collects lines, and a forked child must not write them again.
            self._file: FileIO = path.open("xb", buffering=0)
        except FileExistsError:
            raise ValueError(
                f"--kv-storage-config: allocation_log: {path} exists and is not overwritten; "
                "move it away, or name another file"
            ) from None
        except OSError as error:
            raise ValueError(
                f"--kv-storage-config: allocation_log: {path} cannot be made: {error.strerror}; "
                "name a file in a directory that the engine may write to"
            ) from None
        self._left = MOST_BYTES
        self._on = True
        self._began = time.monotonic()
        self._writer = LogWriter(header, self._write)
        self.flush()
        logger.info("KV storage: what is asked of the block pool is recorded in %s", path)

    # --- what the engine did ---

    def popped(self, blocks: Iterable[KVCacheBlock]) -> None:
        if self._on:
            self._writer.pop([block.block_id for block in blocks])

    def cached(self, blocks: Iterable[KVCacheBlock]) -> None:
        if self._on:
            self._writer.push_cached([block.block_id for block in blocks])

    def freed(self, blocks: Iterable[KVCacheBlock]) -> None:
        if self._on:
            self._writer.push_free([block.block_id for block in blocks])

    def taken(self, block: KVCacheBlock) -> None:
        if self._on:
            self._writer.take(block.block_id)

    def uncached(self, block_ids: Iterable[int]) -> None:
        if self._on:
            self._writer.uncache(block_ids)

    def reset(self) -> None:
        if self._on:
            self._writer.reset()

    def end_pass(self) -> None:
        if self._on:
            self._writer.end_pass((time.monotonic() - self._began) * 1000)

    def idle(self) -> None:
        """Nothing can run: a good time to write."""
        if self._on:
            self._writer.idle((time.monotonic() - self._began) * 1000)
            self.flush()

    # --- the file ---

    def flush(self) -> None:
        if self._on:
            self._writer.flush()

    def close(self) -> None:
        """Idempotent."""
        self.flush()
        self._on = False
        self._guard(self._file.close)

    def _write(self, lines: str) -> None:
        self._left -= len(lines)
        if self._left < 0:
            self._stop(f"it has reached {format_size(MOST_BYTES)}")
        else:
            self._guard(lambda: self._write_all(lines.encode("ascii")))

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]

    def _guard(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            if self._on:
                self._stop(str(error))

    def _stop(self, why: str) -> None:
        self._on = False
        logger.warning("KV storage: recording in %s has ended: %s", self.path, why)
        self._guard(self._file.close)


class RecordingQueue(LedgerQueue):
    """A queue whose every call is recorded, once it has succeeded."""

    def __init__(
        self,
        blocks: list[KVCacheBlock],
        ledger: Ledger,
        before_evict: Callable[[int], object] | None,
        recorder: Recorder,
    ) -> None:
        super().__init__(blocks, ledger, before_evict)
        self._recorder = recorder

    def popleft_n(self, n: int, /) -> list[KVCacheBlock]:
        blocks = super().popleft_n(n)
        if blocks:
            self._recorder.popped(blocks)
        return blocks

    def append_n(self, blocks: Iterable[KVCacheBlock], /) -> None:
        blocks = list(blocks)
        super().append_n(blocks)
        self._recorder.cached(blocks)

    def prepend_n(self, blocks: Iterable[KVCacheBlock], /) -> None:
        blocks = list(blocks)
        super().prepend_n(blocks)
        self._recorder.freed(blocks)

    def remove(self, block: KVCacheBlock, /) -> None:
        super().remove(block)
        self._recorder.taken(block)
