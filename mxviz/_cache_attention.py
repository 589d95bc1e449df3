"""The attention function "mxviz" of transformers: it attends over the packed cache, nothing is unpacked.

`model.set_attn_implementation("mxviz")` is all a model needs. What then passes, in every forward pass,
between transformers, a cache of ours and the two functions that are registered here:

1. transformers asks the cache for the sizes of the mask (`asked`), then calls `packed_mask`, which so knows
   the cache. The cache takes the padding mask, and knows that this pass attends with `packed_attention`.
2. On top of something, `update` returns `Packed` keys and values, and the model hands them to
   `packed_attention`. Prompts, exact layers and families that read what `update` returns get tensors, which
   go the way of transformers' own "sdpa", bit for bit.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mxviz import ops
from mxviz.backends import HeldPart, Part, reference

NAME = "mxviz"

# fmt: off
FAMILIES = frozenset((
    "arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4",
    "gpt2", "gpt_neox", "gpt_oss", "granite", "helium", "llama", "ministral", "mistral", "mixtral",
    "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "starcoder2",
))
# fmt: on
"""`model_type` of the families that hand what `update` returns to the attention function untouched."""


class Packed(NamedTuple):
    """The keys (or the values) of a layer, packed, as `update` returns them for `packed_attention`.

    Args:
        part: views of what is held, good until the cache is cropped.
        backend: what of `mxviz.ops` attends.
    """

    part: Part | HeldPart
    backend: str

    @property
    def shape(self) -> torch.Size:
        """`[batch, kv_heads, tokens, head_dim]`."""
        return torch.Size(self.part.shape)


class _Asked(threading.local):
    """The cache that was asked for mask sizes last, in this thread, and has had no update since."""

    cache = None


_asked = _Asked()


def asked(cache) -> None:
    """Note that a forward pass begins on this cache."""
    _asked.cache = weakref.ref(cache)


def updated() -> None:
    """Note that the pass has come to the first layer: masks that are made from here on are another's."""
    _asked.cache = None


def packed_mask(*args, attention_mask: Tensor | None = None, **kwargs) -> Tensor | None:
    """Return transformers' own mask for "sdpa", and tell the cache of this pass which tokens are padding.

    Raises:
        ValueError: where the mask does not have the length of all tokens held and new.
    """
    found = None if _asked.cache is None else _asked.cache()
    if found is not None:
        found.begin_packed_pass(attention_mask, kwargs["q_length"])
    return sdpa_mask(*args, attention_mask=attention_mask, **kwargs)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor | Packed,
    value: Tensor | Packed,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, Tensor | None]:
    """Attend to packed keys and values as they are, to tensors as transformers does.

    Args:
        module: the attention layer.
        query: `[batch, heads, queries, head_dim]`.
        key, value: what the cache's `update` returned.
        attention_mask: bool, or added to the scores, `[batch, 1 or heads, queries, tokens]`.
        dropout: of the weights, while training.
        scaling: factor on the scores, head_dim^-½ where None.
        softcap: scores become softcap · tanh(scores / softcap).
        s_aux: learned logits `[heads]` that take weight and give nothing.

    Returns:
        `[batch, queries, heads, head_dim]`, and the weights `[batch, heads, queries, tokens]` where
        `output_attentions` asks for them, else None.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if type(key) is Packed:
        why = _why_unpack(query, dropout, kwargs)
        if why is None:
            out = ops.attend(
                query,
                key.part,
                value.part,
                scaling=scale,
                mask=attention_mask,
                softcap=softcap,
                sinks=s_aux,
                backend=key.backend,
            )
            out = out.transpose(1, 2)
            return out if query.shape[2] == 1 else out.contiguous(), None
        _report(why)
        key, value = (ops.unpack(x.part, query.dtype, backend=x.backend) for x in (key, value))
    with_weights = kwargs.get("output_attentions", False)
    if softcap is None and s_aux is None and not with_weights:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    mask = _causal(query, key) if attention_mask is None else attention_mask
    weights = reference.attention_weights(query, key, scaling=scale, mask=mask, softcap=softcap, sinks=s_aux)
    weights = torch.nn.functional.dropout(weights, dropout, training=dropout > 0)
    out = reference.weighted(weights, value).to(query.dtype)
    return out.transpose(1, 2).contiguous(), weights.to(query.dtype) if with_weights else None


def _why_unpack(query: Tensor, dropout: float, kwargs: dict) -> str | None:
    """Return why the kernels cannot do this pass, None where they can."""
    if kwargs.get("output_attentions"):
        return "output_attentions asks for the weights"
    if dropout:
        return "dropout of the weights is on; call model.eval()"
    if query.requires_grad and torch.is_grad_enabled():
        return "gradients are on; run the model under torch.no_grad()"
    if kwargs.get("position_bias") is not None:
        return "this model adds a bias to the scores"
    return None


@cache
def _report(why: str) -> None:
    """Warn, once a reason."""
    warnings.warn(f"the packed cache is unpacked for attention: {why}", stacklevel=3)


def _causal(query: Tensor, key: Tensor) -> Tensor | None:
    """Return the mask that sdpa's `is_causal` stands for, None for a single query."""
    n, tokens = query.shape[2], key.shape[2]
    if n == 1:
        return None
    return torch.ones(n, tokens, dtype=torch.bool, device=query.device).tril(tokens - n)[None, None]


@contextmanager
def attending_packed(model, backend: str = "auto") -> Iterator[bool]:
    """Let a model attend to packed parts while this is open, where it uses "sdpa" and its family can.

    What is not packed goes through "sdpa" still, so caches of other kinds notice nothing. Nobody else may run
    the model meanwhile.

    Args:
        model: a model of transformers.
        backend: what the caches were made with; `reference` would unpack, so it stays with "sdpa".

    Returns:
        whether it does.
    """
    config = model.config.get_text_config(decoder=True)
    stays = config._attn_implementation != "sdpa" or config.model_type not in FAMILIES
    if stays or ops.pick(backend, model.device) == "reference":
        yield False
        return
    model.set_attn_implementation(NAME)
    try:
        yield True
    finally:
        model.set_attn_implementation("sdpa")


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, packed_mask)
