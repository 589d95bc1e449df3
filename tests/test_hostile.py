"""Hostile files: whatever is in them, they are read or refused in one line; nothing in them is executed."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import gguf
import numpy as np
import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st
from made_capture import made_capture
from safetensors.torch import save_file

from mxviz import _models_gguf, models
from mxviz._models_config import check_config
from mxviz.capture import Capture, is_capture
from mxviz.page import capture_lanes_html, html_report
from mxviz.planner import read_json, shape_of
from mxviz.report import report
from mxviz.tensors import read_tensor, tensor_names
from mxviz.views import gallery
from tests.hostile import (
    EXTREMES,
    PICKLE,
    WORDS,
    bounded,
    damaged,
    now_mib,
    peak_mib,
    refused_calmly,
    rounds,
    told_how_many,
)


@pytest.fixture(scope="module", autouse=True)
def counted(request):
    """Say how many inputs each reader was given."""
    with told_how_many(request.config):
        yield


# Tensor files


def npy_bytes(x: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, x, allow_pickle=False)
    return file.getvalue()


def npz_bytes(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def header(text: str, version: int = 1) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    size = struct.pack("<H", len(data) % 65536) if version == 1 else struct.pack("<I", len(data))
    return b"\x93NUMPY" + bytes((version, 0)) + size + data


X = np.arange(24, dtype=np.float32).reshape(4, 6)
NPY = npy_bytes(X)
NPZ = npz_bytes(**{"a.npy": NPY, "b.npy": npy_bytes(X.astype(np.float16))})
KINDS = ["'<f4'", "'|O'", "'<f8'", "'<c8'", "'|V9'", "'<U9999999'", "'<M8[ns]'", "[('a','<f4'),('b','|O')]",
         "'<f16'", "'f4,f4'", "None", "'<i8'", "{'names': ['a'], 'formats': ['O']}", "'|b1'"]  # fmt: skip
sizes = st.sampled_from([-1, 0, 1, 2, 4, *EXTREMES, True, 10**30])
headers = st.builds(
    lambda kind, order, shape, more: (
        f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, {more}}}\n"
    ),
    st.sampled_from(KINDS),
    st.sampled_from(["True", "False", "1", "None", "__import__('os')"]),
    st.lists(sizes, max_size=40).map(lambda s: str(tuple(s)))
    | st.sampled_from(["()", "4", "'ab'", "(4.0, 6)"]),
    st.sampled_from(["", "'x': 1", "'y': " + "(" * 300, "'z': " + "-" * 3000 + "1", "nan", "'descr': '|O'"]),
)
npy_files = st.one_of(
    damaged(NPY),
    st.builds(lambda h, v, d: header(h, v) + d, headers, st.sampled_from([1, 2, 3]), st.binary(max_size=200)),
    st.builds(lambda d: header("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1), }\n") + PICKLE + d,
              st.binary(max_size=20)),
)  # fmt: skip
MEMBERS = ["../../x.npy", "/etc/passwd.npy", ".npy", "a.npy", "x\ny", *WORDS[:5]]
npz_files = st.one_of(
    damaged(NPZ),
    st.builds(lambda d: npz_bytes(**{"a.npy": d}), npy_files),
    st.builds(
        lambda names, d: npz_bytes(**dict.fromkeys(names, d)),
        st.lists(st.sampled_from(MEMBERS), max_size=4),
        st.just(NPY),
    ),
)  # fmt: skip


def read_all(path) -> None:
    for name in tensor_names(path)[:3]:
        found = read_tensor(path, name or None, most=1 << 20)
        assert found.dtype == np.float32 and 2 <= found.ndim <= 4


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


def try_file(place, reader: str, data: bytes) -> None:
    path = place / f"file.{reader}"
    path.write_bytes(data)
    refused_calmly(reader, lambda: read_all(path))


@rounds(250)
@given(npy_files)
def test_npy(place, data):
    with bounded():
        try_file(place, "npy", data)


@rounds(200)
@given(npz_files)
def test_npz(place, data):
    with bounded():
        try_file(place, "npz", data)


@pytest.mark.parametrize("elements", [10**9, 10**6])
def test_an_archive_that_blows_up_is_refused_before_it_does(place, elements):
    path = place / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        file.write(header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({elements}, 1), }}\n"))
        for _ in range(64):
            file.write(bytes(1 << 20))
    assert path.stat().st_size < 100_000  # 64 MiB in it
    with bounded():
        refused_calmly("npz", lambda: read_all(path))
    if elements > 1 << 20:
        with pytest.raises(ValueError, match="has 1,000,000,000 elements; expected at most"):
            read_tensor(path)


def test_an_archive_with_too_many_members_is_not_listed(place):
    path = place / "many.npz"
    path.write_bytes(npz_bytes(**{f"{n}.npy": b"" for n in range(10_001)}))
    with pytest.raises(ValueError, match="has more than 10,000 members; expected one a tensor"):
        tensor_names(path)


def safe_bytes(head: dict | bytes, data: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + data


SAFE = safe_bytes({"a": {"dtype": "F32", "shape": [4, 6], "data_offsets": [0, 96]}}, bytes(96))
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "BOOL", "C64", "F8_E4M3", "x", "", None]),
        "shape": st.lists(sizes, max_size=6) | st.none() | st.text(max_size=3),
        "data_offsets": st.lists(st.sampled_from([*EXTREMES, 96, -1, 0.5]), min_size=1, max_size=3),
    }
)
NAMES = ["a", "", "../x", "__metadata__", "\0"]
safe_files = st.one_of(
    damaged(SAFE),
    st.builds(safe_bytes, st.dictionaries(st.sampled_from(NAMES), entries), st.binary(max_size=200)),
    st.builds(lambda d: safe_bytes(b'{"a":' * d), st.integers(1, 3000)),
    st.just(struct.pack("<Q", 10**9) + b"{}"),
    st.builds(lambda w: safe_bytes({"__metadata__": {"format": w}}), st.sampled_from(WORDS)),
)  # fmt: skip


@rounds(250)
@given(safe_files)
def test_safetensors(place, data):
    with bounded():
        try_file(place, "safetensors", data)


# Captures


def capture_bytes(place, plain: str | None = None) -> bytes:
    made = made_capture()
    path = place / "made.safetensors"
    if plain is None:
        made.save(path)
    else:
        save_file(made._tensors(), str(path), metadata={"format": "mxviz-capture-1", "capture": plain})
    return path.read_bytes()


def places_in(plain: object, at: tuple = ()) -> list[tuple]:
    """The way to every name and value in nested lists and objects."""
    inner = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [at, *(way for key, value in list(inner)[:6] for way in places_in(value, (*at, key)))]


PLAIN = json.dumps(made_capture()._plain())
WAYS = places_in(json.loads(PLAIN))[1:]
NUMBERS = [-1, 0, 0.5, 2**62, -(10**400), float("nan"), float("inf")]
leaves = st.sampled_from([None, True, "", [], {}, [[]], {"a": {}}, ["x"], *NUMBERS, *WORDS])


@st.composite
def plains(draw) -> str:
    plain = json.loads(PLAIN)
    for way in draw(st.lists(st.sampled_from(WAYS), min_size=1, max_size=3)):
        inner = plain
        try:
            for key in way[:-1]:
                inner = inner[key]
            if draw(st.booleans()):
                inner[way[-1]] = draw(leaves)
            else:
                del inner[way[-1]]
        except (KeyError, IndexError, TypeError):  # an earlier change took it away
            continue
    return json.dumps(plain)


def look_at(path) -> None:
    capture = Capture.load(path)
    gallery.described("x", capture).encode()
    gallery.layers_said(capture.layers, capture.shape.get("layers", len(capture.layers)))
    if {"exact", "micro", "single"} <= capture.lanes.keys():
        capture_lanes_html(capture).encode()
        json.dumps(report(capture), allow_nan=True)


@rounds(150)
@given(plains())
def test_captures_whose_header_lies(place, plain):
    path = place / "run.safetensors"
    path.write_bytes(capture_bytes(place, plain))
    with bounded():
        refused_calmly("capture", lambda: look_at(path))


CAPTURE: list[bytes] = []


@rounds(150)
@given(st.data())
def test_captures_that_are_damaged(place, data):
    if not CAPTURE:
        CAPTURE.append(capture_bytes(place))
    path = place / "cut.safetensors"
    path.write_bytes(data.draw(damaged(CAPTURE[0])))
    with bounded():
        assert is_capture(path) in (True, False)
        refused_calmly("capture", lambda: look_at(path))


def test_a_report_of_hostile_words_holds_no_markup_of_theirs():
    words = tuple(WORDS[i % len(WORDS)].replace("\ud800", "?").replace("\udfff", "?") for i in range(40))
    plain = json.loads(PLAIN)
    plain["token_texts"] = [words[i % 40] for i in range(len(plain["token_texts"]))]
    capture = made_capture(token_texts=tuple(plain["token_texts"]), model=WORDS[0], prompt=WORDS[-1])
    page = html_report(capture)
    assert "<script>alert" not in page and "<img src=x" not in page and "onerror=alert(1)>" not in page
    page.encode("utf-8")


# Models


def gguf_file(place) -> bytes:
    path = place / "base.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "<unk>"])
    writer.add_array("tokenizer.ggml.scores", [0.5, 1.5, 2.5])
    writer.add_tensor("token_embd.weight", np.zeros((3, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


GGUF: list[bytes] = []


@rounds(250)
@given(st.data())
def test_gguf_headers(place, data):
    """What passes our look at the header is bounded for the library as well."""
    if not GGUF:
        GGUF.append(gguf_file(place))
    path = place / "x.gguf"
    path.write_bytes(data.draw(damaged(GGUF[0])))
    with bounded():
        if path.read_bytes()[:4] != b"GGUF":
            return
        passed = refused_calmly("gguf", lambda: _models_gguf.check_gguf(path) or True)
        if passed:
            try:
                gguf.GGUFReader(path)
            except (
                Exception
            ) as error:  # the library's own words; `from_gguf` makes one line of whatever it is
                assert not isinstance(error, MemoryError)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((8, "<Q", 10**9), "it declares 1,000,000,000 tensors and"),
        ((16, "<Q", 2**60), "fields in"),
        ((24, "<Q", 10**9), "a text declares 1,000,000,000 bytes and"),
        ((4, "<I", 9), "it has GGUF version 9; expected one of: 2, 3"),
    ],
)
def test_a_gguf_file_that_lies_is_one_line(place, change, said):
    data, (at, kind, value) = bytearray(gguf_file(place)), change
    struct.pack_into(kind, data, at, value)
    path = place / "lies.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="^.*lies.gguf is damaged or cut short: ") as refused:
        models.load(str(path))
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def folder(place):
    path = place / "model"
    tiny.llama().save_pretrained(path)
    return path


def test_a_right_folder_and_file_pass(folder, place):
    check_config(folder)
    path = place / "right.gguf"
    path.write_bytes(gguf_file(place))
    _models_gguf.check_gguf(path)


config_values = st.sampled_from(
    [None, True, -1, 0, 10**9, 2**63, 1e308, float("nan"), "x", [], {}, {"a": 1}, *WORDS]
)


@rounds(150)
@given(st.data())
def test_config_json(folder, place, data):
    config = json.loads((folder / "config.json").read_text())
    names = data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3))
    config |= {name: data.draw(config_values) for name in names}
    text = json.dumps(config)
    if data.draw(st.booleans()):
        text = data.draw(damaged(text.encode())).decode("latin-1")
    other = place / "other"
    other.mkdir(exist_ok=True)
    (other / "config.json").write_text(text, encoding="utf-8")
    (other / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with bounded():
        refused_calmly("config.json", lambda: check_config(other))
        refused_calmly("config.json in the planner", lambda: shape_of(read_json(text)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_hidden_layers": 10**9}, "says num_hidden_layers 1000000000; expected 0 to 2,048"),
        ({"hidden_size": 1 << 20, "vocab_size": 1 << 20}, "weights and"),
        ({"vocab_size": -5}, "says vocab_size -5"),
        ({"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}, "cannot be loaded"),
    ],
)
def test_a_config_that_lies_is_one_line(folder, place, changes, said):
    other = place / "lying"
    other.mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text()) | changes
    (other / "config.json").write_text(json.dumps(config))
    (other / "evil.py").write_text("import builtins; builtins.mxviz_was_owned = 1")
    (other / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with bounded(), pytest.raises(ValueError, match="^folder .* cannot be loaded: ") as refused:
        models.load(str(other))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_the_measure_of_memory_can_fail():
    with pytest.raises(AssertionError, match="MiB were taken"), bounded(most_mib=20):
        more = np.ones(peak_mib() - now_mib() + 100 << 17)
    assert more.nbytes > 0
