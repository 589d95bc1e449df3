"""Every figure from one source: what it is told by default, what it refuses, and the numbers behind it."""

from __future__ import annotations

import html
import json

import numpy as np
import pytest
import torch
from made_capture import made_capture

from mxviz._export_provenance import provenance, provenance_line
from mxviz._export_tables import _TABLES, table
from mxviz._pictures_registry import PICTURES, available, place_of
from mxviz.figures import FIGURES, alt_text
from mxviz.pictures import picture

QUERIES = {1: torch.randn(4, 70, 40, generator=torch.Generator().manual_seed(3))}


@pytest.fixture(scope="module")
def capture():
    """A run with values as wide as keys, whose queries of one layer were recorded."""
    return made_capture(queries=QUERIES)


def rows(capture, name, **given):
    columns, lines = table(capture, name, place_of(capture, name, **given))
    return [dict(zip(columns, line, strict=True)) for line in lines]


def test_every_figure_has_a_title_a_way_to_be_drawn_and_numbers():
    assert tuple(PICTURES) == tuple(FIGURES) == tuple(_TABLES)
    assert list(PICTURES)[:3] == ["scales", "outliers", "error"]


@pytest.mark.parametrize("name", PICTURES)
def test_every_figure_is_drawn_with_nothing_told(capture, name):
    fig = picture(capture, name, width=900, height=700)
    assert (fig.layout.width, fig.layout.height) == (900, 700)
    assert fig.layout.title.text and len(alt_text(fig)) > 40
    assert len(rows(capture, name)) > 0


def test_it_looks_where_the_largest_outlier_is(capture):
    for name in ("scales", "head", "channels", "surface"):
        place = place_of(capture, name)
        assert (place["layer"], place["head"], place["part"]) == (1, 1, "key")
    assert place_of(capture, "cuts")["layer"] == 1
    assert place_of(capture, "overview") == {
        **{"measure": "ratio", "part": "key", "recipe": "mxfp4", "baseline": "fp4@tensor"}
    }
    assert place_of(capture, "divergence") == {}
    assert place_of(capture, "head-errors")["layer"] == 1


def test_the_rulers_open_at_the_largest_value_of_what_was_given(capture):
    size = capture.keys[1][1].abs().numpy()
    place = place_of(capture, "rulers")
    assert (place["token"], place["channel"]) == np.unravel_index(size.argmax(), size.shape)
    assert place_of(capture, "rulers", token=3)["channel"] == size[3].argmax()
    assert place_of(capture, "rulers", channel=5)["token"] == size[:, 5].argmax()
    other = place_of(capture, "rulers", layer=0, head=0, token=9, channel=2)
    assert (other["layer"], other["head"], other["token"], other["channel"]) == (0, 0, 9, 2)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("scale", {}, "no figure 'scale'; expected one of: scales, outliers, error, overview"),
        ("overview", {"head": 1}, "overview takes no head; it takes: measure, part, recipe, baseline"),
        ("divergence", {"part": "key"}, "divergence takes no part; it takes: nothing"),
        ("race", {"query_head": 1}, "takes no query-head"),
        ("scales", {"layer": 9}, "layer 9 was not recorded; recorded layers: 0, 1, 2"),
        ("scales", {"layer": 0, "head": 2}, "head 2 does not exist in layer 0; expected 0 to 1"),
        ("head", {"token": 70}, "token 70 does not exist in layer 1; expected 0 to 69"),
        ("channels", {"channel": -1}, "channel -1 does not exist"),
        ("rulers", {"part": "keys"}, "unknown part 'keys'; expected one of: key, value"),
        ("overview", {"measure": "size"}, "unknown measure 'size'; expected one of: ratio"),
        ("attention", {"layer": 0}, "no queries of layer 0 were recorded; layers with queries: 1"),
        ("attention", {"query_head": 9}, "query head 9 does not exist"),
        ("error", {"recipe": "mxfp5"}, "mxfp5"),
        ("race-layers", {"schemes": ["nope"]}, "nope"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(capture, name, given, said):
    with pytest.raises(ValueError, match="^[^\n]+$") as caught:
        picture(capture, name, **given)
    assert said in str(caught.value)


def test_a_tensor_alone_gives_what_needs_no_run():
    tensor = made_capture(effect={}, lanes={}, values={})
    missing = [name for name in PICTURES if name not in available(tensor)]
    assert missing == ["divergence", "attention", "head-errors"]
    for name in available(tensor):
        assert picture(tensor, name).layout.meta["alt"]
        assert len(rows(tensor, name)) > 0
    with pytest.raises(ValueError, match="divergence needs the effect on the next token.*mxviz run --model"):
        picture(tensor, "divergence")
    with pytest.raises(ValueError, match="race needs the effect on the next token"):
        picture(tensor, "race", measure="kl")
    with pytest.raises(ValueError, match="holds keys alone"):
        picture(tensor, "scales", part="value")


def test_the_numbers_are_those_of_the_capture(capture):
    found = rows(capture, "outliers", layer=0, head=1)
    x = capture.keys[0][1].numpy()
    assert len(found) == x.size
    assert [row["x"] for row in found] == x.ravel().tolist()
    assert [row["text"] for row in found[:41:40]] == ["t0", "t1"]
    ratio = {(r["part"], r["layer"], r["head"]): r["ratio"] for r in rows(capture, "overview")}
    layer = capture.keys[1].abs()
    assert len(ratio) == 2 * 3 * 2
    assert ratio["key", 1, 1] == pytest.approx(float(layer[1].max() / np.median(layer)), rel=1e-3)
    kl = capture.effect["single"]["kl"].numpy()
    told = rows(capture, "divergence")
    assert np.isnan(told[0]["kl_single"]) and told[1]["kl_single"] == pytest.approx(float(kl[0]))
    weights = rows(capture, "attention", position=12)
    assert len(weights) == 13 and sum(row["exact"] for row in weights) == pytest.approx(1)
    steps = rows(capture, "channels", layer=1, head=1)
    assert steps[7]["largest"] == capture.keys[1][1][:, 7].abs().max()
    assert {row["layer"] for row in rows(capture, "race-layers", schemes=["mxfp4"])} == {0, 1, 2}


def test_provenance_says_where_a_figure_came_from_and_not_what_was_asked(capture):
    about = provenance(capture, "rulers", place_of(capture, "rulers", recipe="mxfp4:scale=rceil"))
    assert about["scale_rule"] == "rceil" and about["recipe"] == "mxfp4:scale=rceil"
    assert (about["layer"], about["head"], about["channel"]) == (1, 1, 7)
    assert capture.prompt not in json.dumps(about) and len(about["prompt_sha256"]) == 64
    line = provenance_line(about)
    assert line.startswith(
        f"made by hand · prompt {about['prompt_sha256'][:12]} · layer 1, KV head 1, token "
    )
    assert "mxfp4:scale=rceil against fp4@tensor, scale rule rceil · mxviz 0" in line
    whole = provenance_line(provenance(capture, "divergence", {}))
    assert "layer" not in whole and "scale rule floor" in whole
    assert "rule" not in provenance_line(
        provenance(capture, "scales", place_of(capture, "scales", recipe="nvfp4"))
    )


@pytest.mark.parametrize("alone", [False, True], ids=["a run", "a tensor alone"])
def test_the_report_holds_texts_numbers_and_the_figures_there_are(alone):
    from mxviz.page import ORDER, html_report

    made = made_capture(**({"effect": {}, "lanes": {}, "values": {}} if alone else {}))
    page = html_report(made)
    assert page.count("<figure") == len([name for name in ORDER if name in available(made)])
    assert ("micro text" in page) is not alone and ("Bytes per token" in page) is not alone
    assert all(FIGURES[name].about.split(".")[0] in html.unescape(page) for name in ORDER[:4])
