"""What the tests of the attention function share: models, recipes, and a way to feed them."""

from __future__ import annotations

import tiny
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM

RECIPES = [
    "mxfp4",
    "mxint8;sink=4;residual=8",
    "k=mxfp4:axis=token;v=nvfp4;sink=2;residual=5;rotate=1",
    "kivi2",
    "k=int4@channel;v=none;skip=0",
    "k=mxfp6_e2m3;v=fp8_e4m3@token;rotate=1",
]
KINDS = ["sliding_attention", "full_attention"]


def gemma2():
    """Scores capped so low that it shows."""
    return tiny._model(
        Gemma2ForCausalLM, Gemma2Config, head_dim=32, sliding_window=8, layer_types=KINDS,
        query_pre_attn_scalar=4, attn_logit_softcapping=1.5,
    )  # fmt: skip


def gpt_oss():
    """Learned sinks that take a good part of the weight."""
    model = tiny._model(
        GptOssForCausalLM, GptOssConfig, head_dim=32, sliding_window=8, layer_types=KINDS,
        num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    for layer in model.model.layers:
        layer.self_attn.sinks.normal_(2)
    return model


STOCK = dict.fromkeys(tiny.MODELS, "sdpa") | {"gemma2": "eager", "gpt_oss": "eager"}
MAKERS = {**tiny.MODELS, "gemma2": gemma2, "gpt_oss": gpt_oss}


def run(model, attention: str, cache, chunks, **more) -> torch.Tensor:
    """Feed chunks of tokens; return the last logits of each, `[chunks, batch, vocabulary]`."""
    model.set_attn_implementation(attention)
    return torch.stack([model(ids, past_key_values=cache, **more).logits[:, -1] for ids in chunks])


def chunks(*sizes: int, batch: int = 1) -> list[torch.Tensor]:
    return [tiny.prompt(n, batch=batch, seed=i) for i, n in enumerate(sizes)]


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return float((got - want).abs().max() / want.abs().max()) <= tolerance
