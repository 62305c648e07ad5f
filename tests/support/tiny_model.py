"""Small random models, made on the spot: no download, under a second, a few megabytes.

Weights are N(0, 0.02) and norms are 1; an engine's own dummy weights are near zero and give the
same tokens for almost any prompt. Queries and keys are N(0, 0.1), which makes attention peaked:
with flat attention every step sees the mean of the context and repeats its token.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class TinyLlama:
    """Shape of the model. KV bytes a token: 2 * layers * kv_heads * head_dim * dtype size."""

    layers: int = 4
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    max_positions: int = 4096
    seed: int = 0
    std: float = 0.02
    """Of all weights but those of queries and keys; of those too, if `peaked` is 0. At 0.02 an
    answer soon repeats itself; at 0.1 the layers outweigh the embedding, and answers vary more."""

    letters: bool = False
    """Whether the tokenizer reads a letter for every token, so that a text tells the tokens."""

    peaked: float = 0.1
    """Of queries' and keys' weights, for a hidden size of 256: scores grow with it."""

    def kv_bytes_per_token(self, dtype_size: int = 4) -> int:
        """Bytes of keys and values of all layers for one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype_size


DEFAULT = TinyLlama()


def make_tiny_llama(directory: Path, shape: TinyLlama = DEFAULT) -> Path:
    """Writes config, float32 weights and a byte-level tokenizer; returns the directory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(shape.letters)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=2 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        torch_dtype="float32",
    )
    torch.manual_seed(shape.seed)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):  # a large one is quick there
        model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scores = "q_proj" in name or "k_proj" in name
            std = (scores and shape.peaked) or shape.std
            weight.fill_(1.0) if "norm" in name else weight.normal_(0.0, std)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def make_draft(directory: Path, target: Path, layers: int) -> Path:
    """Writes the first layers of such a model as a model of its own, which guesses some of its
    tokens; returns the directory."""
    depth = _config(target)["num_hidden_layers"]
    dropped = tuple(f"model.layers.{i}." for i in range(layers, depth))
    weights = {k: w for k, w in _weights(target).items() if not k.startswith(dropped)}
    return _write_derived(directory, target, weights, layers)


def make_eagle_head(directory: Path, target: Path) -> Path:
    """Writes an EAGLE head with such a model's last layer: it guesses, more or less, that the token
    just made comes again; returns the directory."""
    import torch

    weights = _weights(target)
    last = f"model.layers.{_config(target)['num_hidden_layers'] - 1}."
    head = {
        f"layers.0.{name.removeprefix(last)}": weight
        for name, weight in weights.items()
        if name.startswith(last) and "input_layernorm" not in name
    }
    hidden = weights["model.norm.weight"].shape[0]
    ours = torch.eye(hidden)
    head["fc.weight"] = torch.cat([torch.zeros_like(ours), ours], dim=1)
    return _write_derived(directory, target, head, 1)


def make_adapter(directory: Path, shape: TinyLlama, seed: int, rank: int = 8) -> Path:
    """Writes a random LoRA adapter of queries, values and outputs; returns the directory."""
    import torch
    from safetensors.torch import save_file

    draw = torch.Generator().manual_seed(seed)
    kv, queries = shape.kv_heads * shape.head_dim, shape.heads * shape.head_dim
    modules = {
        "q_proj": (shape.hidden, queries),
        "v_proj": (shape.hidden, kv),
        "o_proj": (queries, shape.hidden),
    }
    weights = {}
    for layer in range(shape.layers):
        for name, (size_in, size_out) in modules.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, size in (("A", (rank, size_in)), ("B", (size_out, rank))):
                drawn = torch.randn(size, generator=draw) * shape.std
                weights[f"{prefix}.lora_{part}.weight"] = drawn
    directory.mkdir(parents=True)
    save_file(weights, directory / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 4 * rank,
        "target_modules": list(modules),
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def _config(model: Path) -> dict[str, Any]:
    return dict(json.loads((model / "config.json").read_text()))


def _weights(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {k: w for shard in model.glob("*.safetensors") for k, w in load_file(shard).items()}


def _write_derived(directory: Path, source: Path, weights: dict[str, Any], layers: int) -> Path:
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    for path in source.glob("*token*.json"):
        shutil.copy(path, directory)
    config = {**_config(source), "num_hidden_layers": layers}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def byte_tokenizer(letters: bool) -> Any:
    """A token for every byte, behind four special ones. See TinyLlama.letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [*"①②③④"] if letters else ["<s>", "</s>", "<unk>", "<pad>"]
    begin, end, unknown, padding = special
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # Bytes that are no text would all read the same; each has a letter of its own in the alphabet.
    tokenizer.decoder = decoders.Fuse() if letters else decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=end,
        unk_token=unknown,
        pad_token=padding,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a small random Llama to a directory.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    shape = TinyLlama(layers=arguments.layers, seed=arguments.seed)
    print(make_tiny_llama(arguments.directory, shape))


if __name__ == "__main__":
    main()
