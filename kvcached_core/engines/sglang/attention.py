"""What the attention that the arguments choose takes: strides, holes, windows in their own pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcached_core.engines.sglang.windows import Windows

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

# Over keys and values of plain attention, takes their strides.
STRIDES = frozenset({"torch_native", "triton", "fa3", "flashinfer"})
# Over latent attention's cache in FP8, casts the whole of it.
_MLA_CASTS = frozenset({"flashinfer", "fa3", "fa4"})
# Takes strides, and reads the slots of sliding windows by their own ids. (SGLang's torch_native
# reads them by the ids of full attention.)
_WINDOWS = frozenset({"triton", "fa3", "flashinfer"})


def backends_of(server_args: ServerArgs) -> set[str]:
    used = (
        server_args.attention_backend,
        server_args.prefill_attention_backend,
        server_args.decode_attention_backend,
    )
    return {name for name in used if name is not None}


def takes_strides(server_args: ServerArgs) -> bool:
    """Whether all that reads or writes keys and values of plain attention minds their strides."""
    if server_args.device == "cpu":
        from sglang.srt.utils import cpu_has_amx_support  # noqa: PLC0415

        if cpu_has_amx_support():  # stores with a kernel of its own
            return False
    return backends_of(server_args) <= STRIDES


def check_whole_casts(server_args: ServerArgs) -> None:
    """Raises ValueError for attention that reads slots that may have no memory."""
    if "fp8" not in str(server_args.kv_cache_dtype):
        return
    casting = backends_of(server_args) & _MLA_CASTS
    if casting and "MLA" in str(server_args.get_model_config().attention_arch):
        raise ValueError(
            "--kv-storage-backend=kvcached does not work with --kv-cache-dtype=fp8 for this model "
            f"(MLA) and --attention-backend={', '.join(sorted(casting))}: that "
            "reads the whole cache, with memory or without. Use another of the two, or "
            "--kv-storage-backend=static."
        )


def has_windows(server_args: ServerArgs) -> bool:
    """Whether layers with sliding windows get a pool of their own."""
    # The arguments' copy of the model's configuration may be older than what they came to say.
    if getattr(server_args, "disable_hybrid_swa_memory", False):
        return False
    return bool(getattr(server_args.get_model_config(), "is_hybrid_swa", False))


def check_windows(server_args: ServerArgs) -> None:
    """Raises ValueError for windows' pools that are not served."""
    if not has_windows(server_args):
        return
    others = sorted(backends_of(server_args) - _WINDOWS)
    if others:
        raise ValueError(
            "--kv-storage-backend=kvcached does not work with --attention-backend="
            f"{', '.join(others)} for this model, whose sliding windows have a pool of their own. "
            f"Use one of {', '.join(sorted(_WINDOWS))}, or add --disable-hybrid-swa-memory, or use "
            "--kv-storage-backend=static."
        )
    full = getattr(server_args.get_model_config(), "full_attention_layer_ids", None)
    if not full or not takes_strides(server_args):
        raise ValueError(
            "--kv-storage-backend=kvcached does not serve the pools of this model's sliding "
            "windows: that takes layers of full attention beside them, and on a CPU one without "
            "Intel AMX. Add --disable-hybrid-swa-memory, or use --kv-storage-backend=static."
        )


def windows_of(server_args: ServerArgs) -> Windows | None:
    """What requests hold of sliding windows' own slots; None where they have none."""
    if not has_windows(server_args):
        return None
    from sglang.srt.environ import envs  # noqa: PLC0415

    model = server_args.get_model_config()
    window = model.sliding_window_size or model.attention_chunk_size or model.context_len
    chunk = server_args.chunked_prefill_size
    # Where the tree joins its nodes, a prefix may be locked as a whole.
    joins = getattr(envs, "SGLANG_OPT_SWA_RADIX_CACHE_COMPACT", None)
    if chunk is None or chunk <= 0 or (joins is not None and joins.get()):
        return Windows(window, None)
    # Two chunks in flight; a prefix that is locked back to the window's begin, and on to that of a
    # node of the tree: a chunk, or what a request had when it ended, which is a window, what had
    # not been cleared yet and a chunk; and what is not cleared yet now.
    late = max(1, envs.SGLANG_SWA_EVICTION_INTERVAL.get())
    return Windows(window, 2 * (window + late) + 4 * chunk)
