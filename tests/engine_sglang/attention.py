"""What is changed in SGLang before it starts, for upstream and fork alike.

On a CPU only attention in plain torch runs without kernels of its own, and it lacks something for
some caches. On a GPU some kernels take no float32.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def absorb() -> None:
    """Latent attention in one form for all passes, the one that reads the cache. Without this,
    prompts without a prefix are computed in a form that takes other kernels."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
        AttnForwardMethod,
    )

    AttentionBackendRegistry.register("torch_native", lambda *_: AttnForwardMethod.MLA)


def translate() -> None:
    """Layers with a sliding window read their own slots. Without this they write there, and read
    at the ids of full attention; so the elastic backend refuses this attention for them."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    for name in ("forward_extend", "forward_decode"):
        plain = getattr(TorchNativeAttnBackend, name)
        setattr(TorchNativeAttnBackend, name, _translating(plain))
    if importlib.util.find_spec("sglang.srt.mem_cache.kv_storage") is not None:
        from kvcached_core.engines.sglang import attention

        attention._WINDOWS |= {"torch_native"}


def _translating(plain: Callable[..., Any]) -> Callable[..., Any]:
    def forward(backend: Any, q: Any, k: Any, v: Any, layer: Any, *more: Any, **given: Any) -> Any:
        table, pool = backend.req_to_token_pool, backend.token_to_kv_pool
        if not pool.layers_mapping[layer.layer_id][1]:
            return plain(backend, q, k, v, layer, *more, **given)
        slots = pool.translate_loc_from_full_to_swa(table.req_to_token)
        backend.req_to_token_pool = SimpleNamespace(req_to_token=slots)
        try:
            return plain(backend, q, k, v, layer, *more, **given)
        finally:
            backend.req_to_token_pool = table

    return forward


def in_torch() -> None:
    """Norms, activations and rotary embeddings in plain torch also on a GPU."""
    from sglang.srt.layers.utils.multi_platform import MultiPlatformOp

    MultiPlatformOp.dispatch_forward = lambda operation: operation.forward_native


BY_NAME = {"absorb": absorb, "translate": translate, "in_torch": in_torch}
