"""Tiny random models of the families that MXCache has to work with, and what each one's layers hold."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import transformers

VOCABULARY = 96

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 48}
_LATENT = {
    **_EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
}
_LINEAR = {f"linear_{what}": n for what, n in (("num_key_heads", 2), ("num_value_heads", 2))}
_LINEAR |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}


class Family(NamedTuple):
    """A family of models: what it is made of, and the widths of what its layers hold.

    Args:
        make: names in transformers of the config and of the model.
        note: what is particular about it.
        heads, key, value: KV heads, and widths of what the cache holds as keys and as values.
        windows: for each layer its sliding window, None for full attention, 0 for no attention layer.
        changes: what its config has beyond `_SIZES`.
    """

    make: tuple[str, str]
    note: str
    heads: int
    key: int
    value: int
    windows: tuple[int | None, ...]
    changes: dict[str, object]

    @property
    def is_latent(self) -> bool:
        """Whether keys are the latent that keys and values are made from, and values the RoPE part."""
        return self.key != self.value


def _family(name: str, note: str, heads: int, width: int | tuple[int, int], windows=(None, None), **changes):
    key, value = width if isinstance(width, tuple) else (width, width)
    config, model = (f"{name}{end}" for end in ("Config", "ForCausalLM"))
    made = changes.pop("names", (config, model))
    return Family(made, note, heads, key, value, windows, changes)


FAMILIES = {
    "Llama": _family("Llama", "", 2, 32, head_dim=32),
    "Qwen2": _family("Qwen2", "biased keys", 2, 16),
    "Qwen3": _family("Qwen3", "normed keys", 2, 32, head_dim=32),
    "Mistral": _family("Mistral", "sliding", 2, 32, (200, 200), head_dim=32, sliding_window=200),
    "Gemma 2": _family(
        "Gemma2", "softcap, mixed", 2, 32, (48, None), head_dim=32, query_pre_attn_scalar=32, **_MIXED,
    ),
    "Gemma 3": _family(
        "Gemma3", "mixed, head_dim 256", 1, 256, (48, None), head_dim=256, num_attention_heads=2,
        num_key_value_heads=1, query_pre_attn_scalar=256, names=("Gemma3TextConfig", "Gemma3ForCausalLM"),
        **_MIXED,
    ),
    "Phi-3": _family(
        "Phi3", "head_dim 96, partial rotary", 2, 96, hidden_size=192, num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ),
    "GPT-2": _family("GPT2", "learned positions", 4, 16, names=("GPT2Config", "GPT2LMHeadModel")),
    "GPT-NeoX": _family("GPTNeoX", "partial rotary", 4, 16),
    "Falcon": _family("Falcon", "one KV head", 1, 16),
    "Mixtral": _family("Mixtral", "experts", 2, 32, head_dim=32, num_local_experts=4, **_EXPERTS),
    "gpt-oss": _family(
        "GptOss", "learned sinks, mixed", 2, 32, (48, None), head_dim=32, num_local_experts=4,
        num_experts_per_tok=2, **_MIXED,
    ),
    "DeepSeek-V2": _family("DeepseekV2", "latent 64, RoPE part 16", 1, (64, 16), **_LATENT),
    "DeepSeek-V3": _family("DeepseekV3", "latent 64, RoPE part 16", 1, (64, 16), **_LATENT),
    "Qwen3-Next": _family(
        "Qwen3Next", "linear and full attention", 2, 32, (0, None), head_dim=32, num_experts=4,
        layer_types=["linear_attention", "full_attention"], shared_expert_intermediate_size=32,
        **_EXPERTS, **_LINEAR,
    ),
}  # fmt: skip


@cache
def model(name: str, dtype: torch.dtype = torch.float32, seed: int = 0):
    """Return the tiny model of a family, one a process; whoever changes it puts it back."""
    family = FAMILIES[name]
    config_class, model_class = (getattr(transformers, made) for made in family.make)
    torch.manual_seed(seed)
    made = model_class(config_class(**{**_SIZES, **family.changes})).eval().to(dtype)
    with torch.no_grad():  # wide logits, so that greedy text does not hang on rounding
        for p in made.parameters():
            p.mul_(2 if p.dim() > 1 else 1)
        made.get_output_embeddings().weight.normal_(0, 1)
    return made
