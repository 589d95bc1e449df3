"""The command line as a user meets it: one clear line and code 2 for a mistake, JSON alone for `--json -`."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from mxviz.cli import main

RUN = ["run", "--model", "smollm2", "--prompt", "Why is the sky blue?", "--max-new-tokens", "6"]


def refused(capsys, *argv: str) -> str:
    """Run a command that must be refused; return its one line."""
    try:
        code = main(argv)
    except SystemExit as stop:  # argparse leaves by itself
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("mxviz: loading")]
    assert len(lines) == 1, err
    assert lines[0].startswith("mxviz: ")
    return lines[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--model", "no-such-model"], "unknown model 'no-such-model'"),
        (["--recipe", "mxfp5"], "unknown scheme 'mxfp5'"),
        (["--recipe", "mxfp4;sink"], "sink=4"),
        (["--recipe", "mxfp4:axis=up"], "expected one of: channel, token"),
        (["--baseline", "int5@tensor"], "unknown scheme 'int5@tensor'"),
        (["--prompt", ""], "prompt"),
        (["--prompt", "   \n"], "prompt"),
        (["--prompt", "long " * 9000], "8,192"),
        (["--max-new-tokens", "0"], "0"),
        (["--max-new-tokens", "-1"], "-1"),
        (["--max-new-tokens", "ten"], "invalid int value: 'ten'"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-p", "0"], "top_p"),
        (["--backend", "tpu"], "expected one of: auto, gpu, cpu, reference"),
        (["--device", "cuda:7"], "cuda:7"),
        (["--revision", "main"], "revision"),
        (["--out", "/no/such/folder/run.safetensors"], "/no/such/folder"),
        (["--recipe", "mxfp4;skip=99"], "99"),
    ],
)
def test_a_mistake_is_one_line(capsys, change, said):
    base = {RUN[i]: RUN[i + 1] for i in range(1, len(RUN), 2)} | dict([change])
    assert said in refused(capsys, "run", *(word for pair in base.items() for word in pair))


def test_a_text_file_named_gguf(capsys, tmp_path):
    fake = tmp_path / "model.gguf"
    fake.write_text("hello")
    assert "model.gguf" in refused(capsys, "run", "--model", str(fake), "--prompt", "hi")


def test_a_folder_without_a_model(capsys, tmp_path):
    assert str(tmp_path) in refused(capsys, "run", "--model", str(tmp_path), "--prompt", "hi")


def test_a_prompt_file_that_is_not_text(capsys, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refused(capsys, "run", "--model", "smollm2", "--prompt-file", str(path))


def test_no_command_and_an_unknown_command(capsys):
    assert "COMMAND" in refused(capsys)
    assert "bogus" in refused(capsys, "bogus")


def test_json_on_standard_output_is_one_object_and_nothing_else():
    done = subprocess.run(
        [sys.executable, "-m", "mxviz", *RUN, "--json", "-"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["new_tokens"] == 6
    assert report["tokens_held"]["micro"] == report["prompt_tokens"] + 5
    again = subprocess.run(
        [sys.executable, "-m", "mxviz", *RUN, "--json", "-"], capture_output=True, text=True, timeout=300
    )
    assert again.stdout == done.stdout


def test_run_race_figure_and_pack_from_one_capture(capsys, tmp_path):
    run = tmp_path / "run.safetensors"
    assert main([*RUN, "--out", str(run)]) == 0
    assert "bytes per token" in capsys.readouterr().out
    assert main(["race", str(run), "--json", "-"]) == 0
    rows = {row["scheme"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["mxfp4"]["bits_per_element"] == 4.25
    assert (
        rows["mxfp8_e4m3"]["key_sqnr_db"] > rows["mxfp4"]["key_sqnr_db"] > rows["fp4@tensor"]["key_sqnr_db"]
    )
    for name in ("scales", "outliers", "error"):
        out = tmp_path / f"{name}.html"
        assert main(["figure", str(run), name, "-o", str(out)]) == 0
        assert "plotly" in out.read_text(encoding="utf-8").lower()
    packed = tmp_path / "cache.safetensors"
    assert main(["pack", str(run), "-o", str(packed)]) == 0
    assert packed.stat().st_size > 1000
    capsys.readouterr()
    assert "no figure" in refused(capsys, "figure", str(run), "nope", "-o", str(tmp_path / "x.svg"))
    assert "not an mxviz capture" in refused(capsys, "race", str(packed))
    assert "no file" in refused(capsys, "race", str(tmp_path / "missing.safetensors"))


def test_inspect_names_the_planted_channel(capsys, tmp_path):
    x = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
    x[:, 7] += 600
    np.save(tmp_path / "x.npy", x)
    assert main(["inspect", str(tmp_path / "x.npy"), "--recipe", "mxfp4", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shape"] == [256, 128]
    assert [row["channel"] for row in found["outliers"]] == [7]


def test_inspect_refuses_what_is_not_a_tensor(capsys, tmp_path):
    np.save(tmp_path / "object.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert "not numbers" in refused(capsys, "inspect", str(tmp_path / "object.npy"))
    np.save(tmp_path / "flat.npy", np.zeros(8, np.float32))
    assert "[tokens, channels]" in refused(capsys, "inspect", str(tmp_path / "flat.npy"))
    whole = tmp_path / "cut.npy"
    np.save(whole, np.zeros((64, 64), np.float32))
    whole.write_bytes(whole.read_bytes()[:1000])
    assert "cut off" in refused(capsys, "inspect", str(whole))
    np.savez(tmp_path / "two.npz", a=np.zeros((4, 4)), b=np.zeros((4, 4)))
    assert "'a', 'b'" in refused(capsys, "inspect", str(tmp_path / "two.npz"))


def test_models_and_doctor_say_what_is_here(capsys):
    assert main(["models"]) == 0
    assert "smollm2" in capsys.readouterr().out
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    for word in ("torch", "backend reference", "memory", "export", "built-in model"):
        assert word in said


@pytest.mark.parametrize("out", ["", "/dev/null", "/proc/x.json", "/no/such/folder/x.json"])
@pytest.mark.parametrize("option", ["--out", "--json", "--html"])
def test_what_cannot_be_written_is_said_before_the_run(capsys, option, out):
    assert "cannot write" in refused(capsys, *RUN, option, out)


def test_inspect_says_what_does_not_apply_and_works_without_a_twin(capsys, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32))
    assert "one tensor" in refused(capsys, "inspect", str(path), "--recipe", "mxfp4;skip=7")
    assert "one tensor" in refused(capsys, "inspect", str(path), "--recipe", "k=none;v=mxfp4")
    assert "baseline" in refused(capsys, "inspect", str(path), "--recipe", "aint2")
    assert main(["inspect", str(path), "--recipe", "aint2", "--baseline", "int4@tensor"]) == 0
    assert capsys.readouterr().err == ""


def test_pack_refuses_a_layer_that_is_not_there(capsys, tmp_path):
    from mxviz._paths import ASSETS

    run = str(ASSETS / "gallery" / "qwen-code.safetensors")
    out = str(tmp_path / "packed.safetensors")
    assert "0 to 23" in refused(capsys, "pack", run, "-o", out, "--recipe", "mxfp4;skip=99")
    assert main(["pack", run, "-o", out, "--recipe", "mxfp4;sink=4;skip=0;rotate=1"]) == 0


def test_packed_bytes_are_those_of_the_reference(tmp_path):
    from safetensors.torch import load_file

    from mxviz._paths import ASSETS
    from mxviz.capture import Capture
    from mxviz.quantize import quantize

    run = ASSETS / "gallery" / "qwen-code.safetensors"
    assert main(["pack", str(run), "-o", str(tmp_path / "p.safetensors"), "--recipe", "mxfp4;sink=4"]) == 0
    packed = load_file(tmp_path / "p.safetensors")
    blocks = quantize(Capture.load(run).part("key", 8)[:, 4:], "mxfp4")
    assert packed["8.key.packed"].equal(blocks.packed) and packed["8.key.scales"].equal(blocks.scales)
    assert packed["8.key.sink"].shape[1] == 4


GALLERY = "qwen-code.safetensors"


def test_figure_list_names_every_figure(capsys):
    from mxviz.pictures import PICTURES

    assert main(["figure", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert names == list(PICTURES) and names[:3] == ["scales", "outliers", "error"]
    assert all(len(line) > 30 for line in lines)
    assert "measures: sqnr, flushed, kl" in lines[-2]


def test_figure_writes_what_is_asked_for(capsys, tmp_path):
    import csv

    from mxviz._paths import ASSETS

    run, out = str(ASSETS / "gallery" / GALLERY), tmp_path / "f.html"
    look = ["--theme", "transparent", "--size", "square", "--title", "Mine <b>", "--caption", "Below"]
    place = ["--layer", "8", "--head", "0", "--token", "5", "--channel", "31"]
    assert main(["figure", run, "rulers", "-o", str(out), *place, *look, "--provenance"]) == 0
    page = out.read_text(encoding="utf-8")
    assert "Mine &lt;b&gt;" in page and "width:864px;height:864px" in page and "rgba(0,0,0,0)" in page
    assert "Below" in page and "layer 8, KV head 0, token 5, channel 31, keys" in page
    table = tmp_path / "f.csv"
    assert main(["figure", run, "overview", "-o", str(table), "--measure", "single_flushed"]) == 0
    head, *lines = table.read_text(encoding="utf-8").splitlines()
    assert '"figure": "overview"' in head and '"measure": "single_flushed"' in head
    rows = {(r["part"], r["layer"], r["head"]): float(r["single_flushed"]) for r in csv.DictReader(lines)}
    assert rows["key", "8", "0"] > 0.9
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["overview", "--head", "1"], "takes no head"),
        (["scales", "--layer", "99"], "layer 99 was not recorded"),
        (["scales", "--theme", "blue"], "light, dark, transparent"),
        (["scales", "--size", "wall"], "slide, square, column"),
        (["scales", "--font-scale", "7"], "0.5 to 3"),
        (["nope"], "scales, outliers, error, overview"),
    ],
)
def test_figure_refuses_in_one_line_and_leaves_no_file(capsys, tmp_path, arguments, said):
    from mxviz._paths import ASSETS

    out = tmp_path / "f.html"
    name, *options = arguments
    run = str(ASSETS / "gallery" / GALLERY)
    assert said in refused(capsys, "figure", run, name, "-o", str(out), *options)
    assert not out.exists()


def test_figure_without_what_it_needs_says_how_to_get_it(capsys, tmp_path):
    from mxviz._paths import ASSETS

    run = str(ASSETS / "gallery" / "planted.safetensors")
    said = refused(capsys, "figure", run, "divergence", "-o", str(tmp_path / "f.svg"))
    assert "needs the effect" in said and "mxviz run --model" in said
