"""Tiny random transformers models, built on the spot: one of each kind of attention layer."""

from __future__ import annotations

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 128

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}


def llama(**changes):
    """Full attention; head_dim 32 by default."""
    return _model(LlamaForCausalLM, LlamaConfig, head_dim=32, **changes)


def qwen2(**changes):
    """Full attention with biased key and query projections; head_dim 16."""
    return _model(Qwen2ForCausalLM, Qwen2Config, **changes)


def mistral(**changes):
    """Every layer slides, window 8; head_dim 32."""
    return _model(MistralForCausalLM, MistralConfig, sliding_window=8, head_dim=32, **changes)


def gemma3(**changes):
    """One sliding layer (window 8) and one full layer; head_dim 32."""
    kinds = ["sliding_attention", "full_attention"]
    return _model(
        Gemma3ForCausalLM, Gemma3TextConfig, sliding_window=8, head_dim=32, layer_types=kinds, **changes
    )


MODELS = {"llama": llama, "qwen2": qwen2, "mistral": mistral, "gemma3": gemma3}


def _model(model_class, config_class, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes):
    torch.manual_seed(seed)
    config = config_class(**{**_SIZES, **changes})
    model = model_class(config).eval().to(dtype)
    with torch.no_grad():  # wide logits, so that greedy text does not hang on rounding
        model.get_output_embeddings().weight.normal_(0, 1)
    return model


def prompt(tokens: int, *, batch: int = 1, seed: int = 0) -> torch.Tensor:
    """Random token ids `[batch, tokens]`, never the padding id 0."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (batch, tokens), generator=generator)
