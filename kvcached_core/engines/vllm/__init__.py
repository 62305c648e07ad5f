"""Elastic storage for vLLM: an implementation of its ``KVStorageBackend``.

Found by vLLM through the entry point ``kvcached`` of ``vllm.kv_storage_backends``; needs the fork
(distribution ``kvcached-vllm``), whose series adds that interface.
"""

from kvcached_core.engines.vllm.backend import KvcachedBackend

__all__ = ["KvcachedBackend"]
