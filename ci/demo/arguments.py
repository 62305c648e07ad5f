"""What the engines are started with, and upstream's too: all but the storage. By kind of engine."""

from __future__ import annotations

from typing import Any

from scene import BLOCK_TOKENS, CAPACITY, MAX_MODEL_LEN, TOKEN_BYTES

VLLM: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "block_size": BLOCK_TOKENS,
    "enable_prefix_caching": True,
    "seed": 0,
}
SGLANG: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "grammar_backend": "none",
    "dtype": "float32",
    "context_length": MAX_MODEL_LEN,
    "max_running_requests": 16,
    "chunked_prefill_size": 512,
    "random_seed": 0,
}
# Upstream's SGLang would take what memory the machine has.
SGLANG_TOKENS = CAPACITY // TOKEN_BYTES

# Before SGLang is imported. More threads than one wait for each other on processors that are busy.
SGLANG_ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}


def command_line(arguments: dict[str, Any]) -> list[str]:
    """The same as words."""
    words = []
    for key, value in arguments.items():
        option = "--" + key.replace("_", "-")
        words += [option] if value is True else [option, str(value)]
    return words
