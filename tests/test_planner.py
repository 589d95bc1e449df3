"""The planner against real caches, to the byte: every kind of layer, every kind of recipe, and nonsense."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Cohere2Config,
    DeepseekV2Config,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GPTBigCodeConfig,
    GptOssConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3NextConfig,
)

from mxviz import _planner_hub as hub
from mxviz import planner
from mxviz._models_catalogue import CATALOGUE
from mxviz._planner_configs import Layer
from mxviz._planner_known import card_of, checked_hub_id, model_of
from mxviz.cache import MXCache
from mxviz.planner import bytes_per_token, cache_bytes, longest_context, read_json, shape_of

SIZES = {
    **{"vocab_size": 64, "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 6},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}
MLA = {
    **{"q_lora_rank": None, "kv_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 24},
    **{"v_head_dim": 20, "num_key_value_heads": 4, "first_k_dense_replace": 99, "num_hidden_layers": 3},
}
STARCODER = {"vocab_size": 64, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}
CONFIGS = {
    "llama, GQA": lambda: LlamaConfig(**SIZES, head_dim=40),
    "llama, MHA": lambda: LlamaConfig(**SIZES | {"num_key_value_heads": 4}),
    "qwen2, no window": lambda: Qwen2Config(**SIZES, sliding_window=16, max_window_layers=2),
    "qwen2, late windows": lambda: Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=16, max_window_layers=2
    ),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=48),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=40),
    "mixtral": lambda: MixtralConfig(**SIZES, num_local_experts=2),
    "gemma2": lambda: Gemma2Config(**SIZES, head_dim=32, sliding_window=24),
    "gemma3": lambda: Gemma3TextConfig(**SIZES | {"num_hidden_layers": 7}, head_dim=32, sliding_window=70),
    "gpt-oss": lambda: GptOssConfig(
        **SIZES, head_dim=32, sliding_window=8, num_local_experts=2, num_experts_per_tok=1
    ),
    "cohere2": lambda: Cohere2Config(**SIZES, sliding_window=33),
    "olmo3": lambda: Olmo3Config(**SIZES, sliding_window=33),
    "llama4": lambda: Llama4TextConfig(
        **SIZES, head_dim=16, attention_chunk_size=20, num_local_experts=2, intermediate_size_mlp=32
    ),
    "deepseek v2": lambda: DeepseekV2Config(**SIZES | MLA),
    "deepseek v3": lambda: DeepseekV3Config(**SIZES | MLA),
    "falcon, MQA": lambda: FalconConfig(
        vocab_size=64, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, multi_query=True
    ),
    "falcon, new": lambda: FalconConfig(
        **{"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4},
        **{"num_kv_heads": 2, "new_decoder_architecture": True},
    ),
    "starcoder, MQA": lambda: GPTBigCodeConfig(**STARCODER),
    "starcoder, MHA": lambda: GPTBigCodeConfig(**STARCODER, multi_query=False),
    "qwen3-next": lambda: Qwen3NextConfig(
        **SIZES | {"num_hidden_layers": 4}, head_dim=32, num_experts=2, num_experts_per_tok=1
    ),
    "jamba": lambda: JambaConfig(
        **SIZES | {"num_hidden_layers": 4}, num_experts=1, attn_layer_period=2, attn_layer_offset=1,
        use_mamba_kernels=False,
    ),
}  # fmt: skip
RECIPES = [
    *("none", "mxfp4", "nvfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxint8:block=64", "aint2", "nvfp4:block=32"),
    *("mxfp4:axis=token", "nvfp4:axis=token", "mxfp6_e3m2:axis=token,block=16", "kivi4", "kivi2"),
    *("k=mxfp4:axis=token;v=mxfp4;sink=4;residual=8", "k=none;v=mxfp4;residual=5", "mxfp4;sink=4;skip=0"),
    *(
        "int8@tensor",
        "int4@head",
        "fp8_e4m3@token",
        "int8@channel;sink=3",
        "fp6_e2m3@one",
        "k=aint4;v=int4@head",
    ),
    "k=mxint8:axis=token,block=64;v=nvfp4:axis=token;sink=2;residual=33;skip=1,2",
]


def filled(config, layers, recipe: str, sizes, batch: int = 1) -> MXCache:
    """A cache with random K and V of the planner's shapes, fed in chunks of these sizes."""
    cache = MXCache(config, recipe, backend="reference")
    generator = torch.Generator().manual_seed(0)
    for n in sizes:
        for i, layer in enumerate(layers):
            shapes = [(batch, layer.heads, n, width) for width in (layer.key_dim, layer.value_dim)]
            k, v = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
            if layer.heads:
                cache.update(k, v, i)
    return cache


@pytest.mark.parametrize(
    ("recipe", "expected"), [("none", 147_456), ("mxfp4", 39_168), ("nvfp4", 41_472), ("mxfp8_e4m3", 76_032)]
)
def test_bytes_per_token_use_kv_heads_and_head_dim(recipe: str, expected: int) -> None:
    """G10: 36 layers, 8 KV heads, head_dim 128; Qwen3-8B is such a model."""
    layers = shape_of(planner.known_models()["Qwen/Qwen3-8B"].config).layers
    assert layers == (Layer(8, 128, 128),) * 36
    assert bytes_per_token(layers, recipe) == expected
    once = 36 * 2 * 4 if recipe == "nvfp4" else 0
    assert cache_bytes(layers, recipe, 1000) == 1000 * expected + once


@pytest.mark.parametrize(
    ("hub_id", "exact", "mxfp4"),
    [
        # 32 layers × 8 heads × 256 channels × 2 bytes; × 17 / 64 as MXFP4; × 131,072 tokens
        ("meta-llama/Llama-3.1-8B-Instruct", 17_179_869_184, 4_563_402_752),
        # 10 full layers × 131,072 tokens and 52 sliding ones × 1,023, × 16 heads × 256 channels × 2 bytes
        ("google/gemma-3-27b-it", 11_173_199_872, 2_967_881_216),
        # 61 layers × (512 latent + 64 RoPE) × 2 bytes; MXFP4: 272 + 34 bytes
        ("deepseek-ai/DeepSeek-V3", 9_210_691_584, 2_446_589_952),
        # 12 full layers and 12 that hold 127 tokens, × 8 heads × 128 channels × 2 bytes
        ("openai/gpt-oss-20b", 3_224_346_624, 856_467_072),
        # one KV head of 64 channels for 71 query heads: 32 layers × 128 × 2 bytes
        ("tiiuae/falcon-7b", 1_073_741_824, 285_212_672),
        # 4 full layers that store, 16 sliding ones at 511 tokens; 15 layers read those of others
        ("google/gemma-3n-E4B-it", 1_090_486_272, 289_660_416),
    ],
)
def test_real_configs_to_the_byte(hub_id: str, exact: int, mxfp4: int) -> None:
    layers = shape_of(planner.known_models()[hub_id].config).layers
    assert cache_bytes(layers, "none", 131_072) == exact
    assert cache_bytes(layers, "mxfp4", 131_072) == mxfp4
    assert cache_bytes(layers, "mxfp4", 131_072, batch=3) == 3 * mxfp4


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_are_what_a_model_caches(name: str) -> None:
    """A tiny model of each family reads 50 tokens, then three more one by one."""
    torch.manual_seed(0)
    config = CONFIGS[name]()
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    shape = shape_of(config.to_dict())
    for recipe in ("mxfp4", "k=mxfp4:axis=token;v=mxfp4;sink=2"):
        cache = MXCache(model.config, recipe, backend="reference")
        ids = torch.randint(3, 64, (2, 53), generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            model(ids[:, :50], past_key_values=cache, use_cache=True)
            held = [cache.nbytes - cache._foreign_bytes]
            for i in range(50, 53):
                model(ids[:, i : i + 1], past_key_values=cache, use_cache=True)
                held.append(cache.nbytes - cache._foreign_bytes)
        assert held == [cache_bytes(shape.layers, recipe, n, batch=2) for n in range(50, 54)]


def test_shared_layers_hold_nothing() -> None:
    config = Gemma3nTextConfig(num_hidden_layers=15, num_kv_shared_layers=5, sliding_window=16)
    shape = shape_of(config.to_dict())
    kinds = [type(layer).__name__ for layer in MXCache(config, "mxfp4").layers]
    assert [kind == "MXLayer" for kind in kinds] == [layer.heads > 0 for layer in shape.layers]
    assert [layer.window for layer in shape.layers[:6]] == [16, 16, 16, 16, None, 16]
    assert any("last 5 of 15 layers read earlier layers'" in note for note in shape.notes)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_without_layer_types_says_the_same(name: str) -> None:
    """Hub files leave the list out where the class fills it in."""
    told = CONFIGS[name]().to_dict()
    bare = {
        field: value for field, value in told.items() if field not in ("layer_types", "layers_block_type")
    }
    assert shape_of(bare).layers == shape_of(told).layers


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["llama, GQA", "gemma3", "deepseek v3"])
def test_bytes_are_the_caches(name: str, recipe: str) -> None:
    config = CONFIGS[name]()
    layers = shape_of(config.to_dict()).layers
    for tokens in (1, 31, 33, 131):
        expected = filled(config, layers, recipe, [tokens], batch=2).nbytes
        assert cache_bytes(layers, recipe, tokens, batch=2) == expected, tokens
    assert cache_bytes(layers, recipe, 137) == filled(config, layers, recipe, [130, *[1] * 7]).nbytes


@pytest.mark.parametrize("window", [1, 2, 17, 32, 33, 64, 65, 96])
@pytest.mark.parametrize(
    "recipe", ["mxfp4;residual=8", "mxfp4:axis=token", "k=mxfp4:axis=token;v=mxfp4;residual=3"]
)
def test_windows_stop_growing(window: int, recipe: str) -> None:
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**SIZES | {"num_hidden_layers": 2}, sliding_window=window, layer_types=kinds)
    slides, full = layers = shape_of(config.to_dict()).layers
    for tokens in (5, 31, 64, 65, 97, 130):
        expected = filled(config, layers, recipe, [tokens]).nbytes
        assert cache_bytes(layers, recipe, tokens) == expected, tokens
    assert bytes_per_token(layers, recipe) == bytes_per_token([full], recipe)
    if window >= 96:
        assert bytes_per_token([slides], recipe) == 0
        assert longest_context([slides], recipe, 10**9) is None


def test_the_longest_context_fits_at_every_length_before_it() -> None:
    draw = random.Random(3)
    for _ in range(60):
        layers = [Layer(draw.choice([1, 3]), 40, 24, draw.choice([None, None, 9, 70])) for _ in range(3)]
        layers.append(Layer(2, 32, 32))
        recipe, batch = draw.choice(RECIPES), draw.choice([1, 2])
        room = draw.randrange(0, 40_000)
        sizes = [cache_bytes(layers, recipe, n, batch) for n in range(1, 1200)]
        expected = next((n for n, size in enumerate(sizes) if size > room), None)
        assert longest_context(layers, recipe, room, batch) == expected, (recipe, layers, room)


def test_kept_exact_and_refused() -> None:
    layers = (Layer(2, 64, 64), Layer(2, 64, 64, packs=False), Layer(2, 64, 64, window=8))
    assert cache_bytes(layers, "mxfp4:axis=token", 32) == 2 * 2 * (34 * 32 + 128 * 32 + 128 * 7)
    assert cache_bytes(layers, "mxfp4", 0) == 0
    assert longest_context(layers, "mxfp4", 0) == longest_context(layers, "mxfp4", -5) == 0
    with pytest.raises(
        ValueError, match=r"skip=7 names a layer this model does not have; expected layers from 0 to 2"
    ):
        cache_bytes(layers, "mxfp4;skip=7", 8)
    with pytest.raises(ValueError, match="would quantize nothing: every layer of this model stays exact"):
        cache_bytes(layers[1:], "mxfp4:axis=token", 8)
    with pytest.raises(ValueError, match="-1 tokens × batch 1 cannot be"):
        cache_bytes(layers, "mxfp4", -1)


def test_nested_multimodal_heterogeneous_and_remote_names() -> None:
    text = {"model_type": "llama", **{k: SIZES[k] for k in list(SIZES)[:6]}}
    plain = shape_of(text)
    assert (
        shape_of({"model_type": "llava", "text_config": text, "vision_config": {"hidden_size": 9}}) == plain
    )
    assert shape_of({"thinker_config": {"text_config": text}}).layers == plain.layers
    # the smallest Gemma 3 text part on the hub leaves heads and window to its class
    gemma = shape_of(
        {"text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34}}
    )
    assert gemma.layers[:6] == (Layer(4, 256, 256, 4096),) * 5 + (Layer(4, 256, 256),)
    own = shape_of(text | {"per_layer_config": {"2": {"num_key_value_heads": 4, "head_dim": 8}}})
    assert own.layers[2] == Layer(4, 8, 8) and own.layers[1] == Layer(2, 16, 16)
    assert shape_of(text | {"v_head_dim": 24}).layers[0] == Layer(2, 16, 24)
    mqa = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"kv_n_heads": 1}}
    assert shape_of(mqa).layers == (Layer(1, 16, 16),) * 2
    mamba = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-*M-"}
    assert [layer.heads for layer in shape_of(text | mamba).layers] == [0, 2, 0, 2, 0, 0]


GOOD = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "this is no JSON"),
        ('{"num_hidden_layers": 2, "num_att', "this is no JSON"),
        ("[1, 2]", "this JSON is a list; expected an object in braces"),
        ("7", "this JSON is a number; expected an object"),
        ('{"num_hidden_layers": NaN}', "NaN is no number of a config"),
        ("[" * 100_000, "nested too deep|no JSON"),
        ("1" * 5000, "no JSON"),
        ("x" * 200_001, "200,001 characters; a config.json has fewer than 200,000"),
    ],
)
def test_pasted_nonsense_is_one_calm_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        read_json(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing; paste the whole config.json"),
        ({"num_hidden_layers": -2}, r"num_hidden_layers is -2; expected a whole number from 1 to 10,000"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers is 1000000000000000000"),
        ({"num_hidden_layers": "32"}, r"num_hidden_layers is '32' \(a text\); expected a whole number"),
        ({"num_attention_heads": 4.0}, "num_attention_heads is 4.0; expected a whole number"),
        ({"num_attention_heads": True}, "num_attention_heads is True; expected a whole number"),
        ({"num_attention_heads": None}, "num_attention_heads is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 3}, "hidden_size 3 is less than num_attention_heads 4"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8, more than the 4 num_attention_heads"),
        ({"num_key_value_heads": [2]}, r"num_key_value_heads is \[2\]"),
        ({"sliding_window": 0}, "sliding_window is 0; expected a whole number from 1"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, but num_hidden_layers is 2"),
        ({"layer_types": "full"}, "layer_types is 'full'; expected a list of names"),
        (
            {"layer_types": ["warp", "warp"]},
            "layers of type 'warp' are not counted; expected: full_attention",
        ),
        ({"layer_types": ["conv", "conv"]}, "no layer of this model holds keys and values that grow"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers is 3; expected a whole number from 0 to 2"),
        ({"is_encoder_decoder": True}, "this model has an encoder"),
        ({"index_head_dim": 128}, "this model's indexer keeps keys of its own"),
        ({"kv_lora_rank": "x", "qk_rope_head_dim": 64}, "kv_lora_rank is 'x'"),
    ],
)
def test_wrong_fields_are_named(change: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        shape_of(GOOD | change)
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


def test_notes_say_what_is_special() -> None:
    known = planner.known_models()
    latent = shape_of(known["deepseek-ai/DeepSeek-V3"].config).notes
    assert "latent" in latent[0] and "5.24" in latent[0]
    linear = shape_of(known["Qwen/Qwen3-Next-80B-A3B-Instruct"].config).notes
    assert linear[0].startswith("36 of 48 layers hold no keys and values: linear attention")
    sliding = shape_of(known["google/gemma-3-27b-it"].config).notes
    assert "52 of 62 layers slide" in sliding[0] and "keeps 1,023" in sliding[0]
    assert "all are counted" in shape_of(CONFIGS["falcon, new"]().to_dict()).notes[0]
    assert "names no model_type" in shape_of({k: v for k, v in GOOD.items() if k != "model_type"}).notes[0]


def test_cards_and_models_say_where_their_numbers_come_from() -> None:
    cards = planner.cards()
    assert cards["RTX 4090"] == planner.Card("RTX 4090", 24, 24_564 * 2**20)
    assert list(cards.values()) == sorted(cards.values(), key=lambda card: card.memory)
    assert all(0.85 < card.memory / (card.label_gb * 2**30) <= 1.003 for card in cards.values())
    for hub_id, known in planner.known_models().items():
        assert checked_hub_id(hub_id) == hub_id and shape_of(known.config).context
        assert (known.weights is None) == (not known.weights_from)
    assert planner.known_models()["Qwen/Qwen3-8B"].weights == 16_381_470_720
    assert card_of("96 GiB").memory == 96 * 2**30 and card_of("T4").label_gb == 16
    assert all(model_of(name) for name in CATALOGUE), "the catalogue is planned with without a network"
    assert card_of("h100").name == "H100"
    assert model_of("deepseek").title == "DeepSeek-V3" and model_of("Llama 2 7B").hub_id.startswith("meta")
    assert model_of("gpt-oss-120b") is None
    with pytest.raises(ValueError, match="'qwen3' could be Qwen3 0.6B, Qwen3 8B, Qwen3-Next"):
        model_of("qwen3")
    for wrong in ("RTX", "-4", "nan", "inf", ""):
        with pytest.raises(ValueError, match="is no card known here; choose one or type its memory in GiB"):
            card_of(wrong)


@pytest.mark.parametrize(
    "wrong", ["gpt2", "../../etc/passwd", "a/b/c", "a/..", "a b/c", "/x", "ü/x", "x/" + "y" * 200]
)
def test_hub_ids_are_checked_before_anything_is_asked(wrong: str) -> None:
    with pytest.raises(ValueError, match="is no hub id; expected owner/name"):
        hub.from_hub(wrong)


def test_a_hub_config_is_read_as_json_and_weights_are_counted(monkeypatch) -> None:
    counted = SimpleNamespace(safetensors=SimpleNamespace(parameters={"BF16": 1000, "F8_E4M3": 500}))
    monkeypatch.setattr(hub, "_listed", lambda name: counted)
    monkeypatch.setattr(hub, "_config_text", lambda name, offline: json.dumps(GOOD))
    hub.from_hub.cache_clear()
    found = hub.from_hub(" https://huggingface.co/owner/name ")
    assert (found.hub_id, found.title, found.weights) == ("owner/name", "name", 2500)
    assert found.weights_from == "1,500 parameters in 'BF16, F8_E4M3', as the hub counts them"
    assert shape_of(found.config).layers == (Layer(4, 16, 16),) * 2
    monkeypatch.setattr(hub, "_listed", lambda name: SimpleNamespace(safetensors=None))
    assert hub.from_hub("owner/pickled").weights is None
    monkeypatch.setattr(hub, "_config_text", lambda name, offline: "{}")
    with pytest.raises(ValueError, match="^owner/other: num_hidden_layers is missing"):
        hub.from_hub("owner/other")
    hub.from_hub.cache_clear()


@pytest.mark.parametrize(
    ("asking", "fetching", "said"),
    [
        (
            ConnectionError("no route\nto host"),
            "LocalEntryNotFoundError",
            "the hub cannot be reached; choose",
        ),
        ("RepositoryNotFoundError", None, r"the hub has no such model \(or it is private\)"),
        (None, "GatedRepoError", "it is gated: accept its terms on the hub"),
        (None, "EntryNotFoundError", "it has no config.json; paste one"),
    ],
)
def test_the_hubs_errors_are_one_line(monkeypatch, asking, fetching, said: str) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    def raising(error):
        def call(*_args, **_options):
            if isinstance(error, str):
                found = getattr(errors, error)
                raise found.__new__(found)
            if error is not None:
                raise error

        return call

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", raising(asking))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", raising(fetching))
    with pytest.raises(ValueError, match=f"^owner/gone: {said}") as error:
        hub.from_hub("owner/gone")
    assert "\n" not in str(error.value)
