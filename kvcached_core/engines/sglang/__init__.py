"""Elastic storage for SGLang: an implementation of its ``KVStorageBackend``.

Found by SGLang through the entry point ``kvcached`` of ``sglang.kv_storage_backends``; needs the
fork (distribution ``kvcached-sglang``), whose series adds that interface.
"""

from kvcached_core.engines.sglang.backend import KvcachedBackend

__all__ = ["KvcachedBackend"]
