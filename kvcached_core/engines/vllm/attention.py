"""Whether the model's attention backends take the cache as it is laid out; asked in the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.config import set_current_vllm_config

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

_REFUSED = {
    "FLEX_ATTENTION": "it wants each layer's cache in one piece, and its tables grow with the "
    "number of addresses, not with memory; choose another --attention-backend"
}
# Read and write by strides, but upstream's flag, which asks for a stride order, does not say so.
_STRIDED = frozenset({"CPU_ATTN"})
_PER_LAYER = '--kv-storage-config \'{"layout": "per-layer"}\''


def check_attention(
    vllm_config: VllmConfig, specs: dict[str, KVCacheSpec], block_major: bool
) -> None:
    """Raises ValueError for the first layer whose backend cannot use the layout, by both names."""
    layers: dict[str, Any] = vllm_config.compilation_config.static_forward_context
    with set_current_vllm_config(vllm_config):  # backends look at it for their kernels' block sizes
        for name, spec in specs.items():
            backend = layers[name].get_attn_backend()
            if reason := _why_not(backend, spec, block_major):
                raise ValueError(
                    "--kv-storage-backend=kvcached does not serve attention backend "
                    f"{backend.get_name()} (layer {name}): {reason}"
                )


def _why_not(backend: Any, spec: Any, block_major: bool) -> str | None:
    kind = backend.get_name()
    if reason := _REFUSED.get(kind):
        return reason
    # Other state than attention's is refused by its spec.
    if block_major and hasattr(spec, "indexes_kv_by_block_stride"):
        return _why_not_block_major(backend, kind, spec)
    return None


def _why_not_block_major(backend: Any, kind: str, spec: Any) -> str | None:
    if not spec.indexes_kv_by_block_stride and kind not in _STRIDED:
        return (
            "it does not read blocks by their stride, as the block-major layout needs; set "
            f"{_PER_LAYER}"
        )
    sizes = backend.get_supported_kernel_block_sizes()
    if sizes and not any(_takes(size, spec.block_size) for size in sizes):
        whole = ", ".join(str(getattr(size, "base", size)) for size in sizes)
        return (
            f"its kernels take blocks of {whole} tokens, and blocks of {spec.block_size} cannot be "
            f"split in the block-major layout; set --block-size, or {_PER_LAYER}"
        )
    return None


def _takes(size: Any, block_size: int) -> bool:
    """Whether a kernel for `size`, a number or a multiple of one, reads such blocks unsplit."""
    base = getattr(size, "base", None)
    return bool(size == block_size if base is None else block_size % base == 0)
