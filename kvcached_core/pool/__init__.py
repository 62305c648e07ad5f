"""The ledger of blocks and pages, and when to grow and shrink: no clock, no driver, no socket."""

from kvcached_core._native import BlockQueue, Ledger
from kvcached_core.pool.policy import GrowthPolicy

__all__ = ["BlockQueue", "GrowthPolicy", "Ledger"]
