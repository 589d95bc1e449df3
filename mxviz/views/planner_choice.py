"""What the planner is asked: five controls in sight, and a fold for a pasted config and for the weights."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import streamlit as st

from mxviz._pictures_planner import Plan
from mxviz._pictures_race_table import name_of
from mxviz._planner_configs import MAX_CHARACTERS
from mxviz._planner_known import Known, card_of, cards, known_models, model_of
from mxviz.figures.planner import context_words
from mxviz.formats import Recipe
from mxviz.planner import GIB, read_json, shape_of
from mxviz.views.limits import limits

FIRST, FIRST_CARD, FIRST_CONTEXT = "meta-llama/Llama-3.1-8B-Instruct", "RTX 4090", 131_072
RECIPES = (
    *("mxfp4", "k=mxfp4:axis=token;v=mxfp4", "nvfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxint8"),
    *("kivi4", "kivi2", "int8@tensor", "int4@tensor", "none"),
)
_NAMES = {"none": "Uncompressed", "kivi4": "KIVI, 4 bits", "kivi2": "KIVI, 2 bits"}
CONTEXTS = [n for k in range(10, 22) for n in (2**k, 3 * 2 ** (k - 1))] + [2**22]
NO_CARD = "no card"
PROVENANCE = (
    "Cards: the memory their drivers report (nvidia-smi, rocm-smi), in GiB of 2³⁰ bytes; the GB in brackets "
    "are what the maker prints on the card. Cache: the bytes that mxviz's own cache holds after a prompt of "
    "that length, exact parts in 16 bit; buffers that grow ahead take up to an eighth more. Recurrent "
    "states, activations and the runtime's own memory are not in the sum."
)
_HELP = {
    False: "Any model of the hub can be typed in as owner/name; its config.json alone is fetched. "
    "A config.json can be pasted under More.",
    True: "The config.json of any other model can be pasted under More.",
}
_KEPT = {"persist_state": "session"}
_LINKED = {**_KEPT, "bind": "query-params"}  # the address rebuilds the five controls


class Chosen(NamedTuple):
    """What is asked, in words where the numbers come from, and what to know about the model."""

    plan: Plan
    weights_from: str
    notes: tuple[str, ...]


def choose() -> Chosen:
    """Draw the controls and return what they are set to.

    Raises:
        ValueError: one line for a model, config, card or recipe that cannot be planned with.
    """
    model, recipe, card = st.columns([2.2, 1.8, 1.6], vertical_alignment="bottom")
    left, right = st.columns([4, 1], vertical_alignment="bottom")
    asked = _model(model)
    text = _recipe(recipe)
    place = card.selectbox(
        "Card",
        [NO_CARD, *cards()],
        1 + list(cards()).index(FIRST_CARD),
        key="plan-card",
        format_func=lambda name: f"{name} · {cards()[name].label_gb:g} GB" if name in cards() else name,
        accept_new_options=True,
        help="Any other memory can be typed in, in GiB, such as 96.",
        **_LINKED,
    )
    tokens = left.select_slider(
        "Context, tokens", CONTEXTS, FIRST_CONTEXT, key="plan-context", format_func=context_words, **_LINKED
    )
    batch = right.number_input("Batch", 1, 65_536, 1, key="plan-batch", **_LINKED)
    with st.expander("More: paste a config.json, the weights, memory kept free"):
        found, weights, kept = _folded(asked)
    shape = shape_of(found.config)
    said = "" if weights is None else f"{weights / GIB:,.1f} GiB of weights"
    if weights is not None and weights == found.weights:
        said += f": {found.weights_from}."
    elif weights is not None:
        said += ", as you say."
    where = None if place in (None, NO_CARD) else card_of(place)
    plan = Plan(
        found.title, shape.layers, str(Recipe.parse(text)), tokens, batch, where, weights, kept, shape.context
    )
    return Chosen(plan, said, shape.notes)


def _model(column) -> str:
    models = known_models()
    return column.selectbox(
        "Model",
        list(models),
        list(models).index(FIRST),
        key="plan-model",
        format_func=lambda name: models[name].title if name in models else name,
        accept_new_options=True,
        help=_HELP[limits().public],
        **_LINKED,
    )


def _recipe(column) -> str:
    return column.selectbox(
        "Store the cache as",
        RECIPES,
        key="plan-recipe",
        format_func=lambda name: _NAMES.get(name) or name_of(name),
        accept_new_options=True,
        help="Any recipe can be typed in, such as mxfp4;sink=4;residual=32.",
        **_LINKED,
    )


def _folded(asked: str) -> tuple[Known, int | None, int]:
    """Return the model, bytes of its weights (None: not known), and bytes kept free."""
    text = st.text_area(
        "A config.json, in place of the model above",
        key="plan-config",
        height=110,
        placeholder='{"model_type": "llama", "num_hidden_layers": 32, …}',
        max_chars=MAX_CHARACTERS,
        **_KEPT,
    )
    left, right = st.columns(2, vertical_alignment="bottom")
    found = _pasted(text) if text and text.strip() else _named(asked)
    weights = left.number_input(
        "Weights, GiB",
        0.0,
        100_000.0,
        None if found.weights is None else found.weights / GIB,
        0.5,
        key=f"plan-weights-{found.hub_id}",
        placeholder="not known: type them in",
        help="A quantized model takes less than its 16 bits a parameter.",
        **_LINKED,
    )
    kept = right.number_input(
        "Kept free for everything else, GiB", 0.0, 1000.0, 0.0, 0.5, key="plan-kept", **_LINKED
    )
    known = found.weights is not None and weights is not None and abs(weights * GIB - found.weights) < 2**20
    return found, found.weights if known else None if weights is None else int(weights * GIB), int(kept * GIB)


def _pasted(text: str) -> Known:
    config = read_json(text)
    mark = zlib.crc32(text.encode(errors="replace"))  # another text has other weights
    return Known(f"pasted-{mark}", "the pasted model", config, None, "")


def _named(asked: str | None) -> Known:
    if not asked or not asked.strip():
        raise ValueError("no model is chosen; choose one, or type in a hub id such as Qwen/Qwen3-8B")
    found = model_of(asked)
    if found is not None:
        return found
    if limits().public:
        raise ValueError("no hub is asked here; choose a listed model, or paste its config.json under More")
    from mxviz._planner_hub import from_hub

    with st.spinner("the hub is asked for this model's config.json …"):
        return from_hub(asked)
