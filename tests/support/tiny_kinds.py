"""Small random models whose cache is not plain attention's, for SGLang. Shape and weights as in
tiny_model.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.tiny_model import DEFAULT, byte_tokenizer

LATENT_RANK, LATENT_ROPE = 64, 16


def make_tiny_latent(directory: Path) -> Path:
    """Writes a model of latent attention (MLA, as DeepSeek's) without experts; returns the
    directory. A token takes LATENT_RANK + LATENT_ROPE numbers a layer."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        **_common(),
        intermediate_size=2 * DEFAULT.hidden,
        num_key_value_heads=DEFAULT.heads,
        kv_lora_rank=LATENT_RANK,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=LATENT_ROPE,
        v_head_dim=32,
        moe_intermediate_size=64,
        n_routed_experts=2,
        num_experts_per_tok=1,
        first_k_dense_replace=DEFAULT.layers,
    )
    # SGLang on a CPU has only the positions of DeepSeek's own models, and reads the older names.
    positions = {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": DEFAULT.max_positions // 2,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    more = {"rope_theta": 10000.0, "rope_scaling": positions, "moe_layer_freq": 1}
    return _write(DeepseekV2ForCausalLM, config, directory, more, without="rope_parameters")


WINDOW = 64
_WINDOWED = [1, 0, 1, 0]


def make_tiny_windows(directory: Path) -> Path:
    """Writes a model every other of whose layers sees only the last WINDOW tokens, in a pool of
    their own; returns the directory."""
    from transformers import Cohere2Config, Cohere2ForCausalLM

    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in _WINDOWED]
    config = Cohere2Config(
        **_common(),
        intermediate_size=2 * DEFAULT.hidden,
        num_key_value_heads=DEFAULT.kv_heads,
        sliding_window=WINDOW,
        layer_types=kinds,
    )
    # SGLang gives such layers a pool of their own for models that it lists, and by these two names.
    more = {"is_hybrid_swa": True, "hybrid_layer_pattern": _WINDOWED}
    return _write(Cohere2ForCausalLM, config, directory, more)


def _common() -> dict[str, Any]:
    tokenizer = byte_tokenizer(DEFAULT.letters)
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": DEFAULT.hidden,
        "num_hidden_layers": DEFAULT.layers,
        "num_attention_heads": DEFAULT.heads,
        "max_position_embeddings": DEFAULT.max_positions,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "torch_dtype": "float32",
    }


def _write(
    cls: Any, config: Any, directory: Path, more: dict[str, Any], without: str | None = None
) -> Path:
    """`more` and `without`: what the written config has beyond the model's, and lacks."""
    import torch

    torch.manual_seed(DEFAULT.seed)
    model = cls(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scores = any(part in name for part in ("q_proj", "k_proj", "kv_a_proj", "kv_b_proj"))
            std = DEFAULT.peaked if scores else DEFAULT.std
            weight.fill_(1.0) if "norm" in name else weight.normal_(0.0, std)
    model.save_pretrained(directory)
    byte_tokenizer(DEFAULT.letters).save_pretrained(directory)
    path = directory / "config.json"
    written = {**json.loads(path.read_text()), **more}
    written.pop(without or "", None)
    path.write_text(json.dumps(written))
    return directory
