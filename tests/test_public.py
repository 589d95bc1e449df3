"""Public mode: only listed models, no paths, no hub, caps, and a server that gives nothing else away."""

from __future__ import annotations

import http.client
import json
import os
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import tiny_text
from made_capture import made_capture
from streamlit.testing.v1 import AppTest

from mxviz import _cli_app, cli
from mxviz.engine import Settings
from mxviz.views import engines, hall, jobs, journal, limits, measuring, sensitivity, tabs
from tests.browser import serve

SECRET = "my secret prompt"


@pytest.fixture
def public(monkeypatch):
    monkeypatch.setenv(limits.PUBLIC, "1")
    monkeypatch.setattr(jobs, "start_warming", lambda: None)
    monkeypatch.setattr(limits, "is_here", lambda name: name == "smollm2")
    monkeypatch.setattr(tabs, "HALL", hall.Hall())


# Models


@pytest.mark.parametrize(
    "name",
    [
        "/etc",
        "/etc/passwd",
        "~",
        ".",
        "model.gguf",
        "Qwen/Qwen3-0.6B",
        "owner/name",
        "",
        "smollm2/../x",
        "\0",
    ],
)
def test_only_listed_models_are_loaded(public, monkeypatch, name):
    monkeypatch.setattr(engines, "_load", lambda name: pytest.fail(f"{name} was loaded"))
    assert limits.offered() == ["smollm2"]
    with pytest.raises(ValueError, match=r"is not offered here; choose one of: smollm2$") as refused:
        engines.loaded(name)
    assert "\n" not in str(refused.value)


def test_a_file_cannot_name_a_folder_of_this_machine(public, tmp_path):
    assert sensitivity.model_here(made_capture(model=str(tmp_path))) is None
    job = measuring.Measuring(("race", "x"), "/etc", lambda name, *_: engines.loaded(name), session="s")
    job.run()
    assert job.result is None and "is not offered here" in job.error


def test_the_planner_asks_no_hub(public, monkeypatch):
    from mxviz.views import planner_choice

    monkeypatch.setattr("mxviz._planner_hub.from_hub", lambda name: pytest.fail("the hub was asked"))
    with pytest.raises(ValueError, match="^no hub is asked here; choose a listed model"):
        planner_choice._named("owner/name")


# Caps


def run_page() -> None:
    from mxviz.views import run

    run.page()


def test_the_page_offers_what_may_be_asked_whatever_the_address_said(public):
    at = AppTest.from_function(run_page, default_timeout=120)
    at.session_state["model"], at.session_state["length"] = "/etc/passwd", 4096
    at.run()
    assert not at.exception
    model = next(box for box in at.selectbox if box.key == "model")
    assert model.value == "smollm2" and len(model.options) == 1 and model.label == "Model"
    assert at.number_input(key="length").value == at.number_input(key="length").max == 256


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"prompt": "x", "max_new_tokens": 257}, "257 new tokens are too many here; expected at most 256"),
        ({"prompt": "x" * 4001}, "a prompt of 4,001 characters is too long here; expected at most 4,000"),
    ],
)
def test_a_run_that_asks_too_much_does_not_start(public, monkeypatch, settings, said):
    monkeypatch.setattr(jobs, "get_script_run_ctx", lambda: SimpleNamespace(session_id="s"))
    job = jobs.start("smollm2", Settings(**settings))
    assert job.done and job.error == said and job.visitor is None


def test_a_tab_starts_six_runs_a_minute(public, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(limits.time, "monotonic", lambda: clock[0])
    rate = limits.Rate()
    for _ in range(6):
        rate.check("a")
    with pytest.raises(ValueError, match="^6 starts within a minute are enough; wait a little$"):
        rate.check("a")
    rate.check("b")
    clock[0] = 61.0
    rate.check("a")
    assert list(rate._times) == ["a"]  # nothing is kept of who has gone
    for number in range(119):
        rate.check(f"tab {number}")
    with pytest.raises(ValueError, match="many people start runs just now"):
        rate.check("one more")


def test_a_conversation_is_kept_short(public):
    limits.check_held(2048)
    with pytest.raises(ValueError, match="2,049 tokens; at most 2,048 are kept here"):
        limits.check_held(2049)
    assert limits.limits().idle_talk_s == 600


# What is written down


def test_the_journal_has_numbers_and_no_words(public, capsys):
    model = engines.replace(tiny_text.loaded(template=None), lock=tabs.HALL)
    for name, work in (("smollm2", lambda: model), (f"/home/{SECRET}", lambda: 1 / 0)):
        job = jobs.Job(name, Settings(SECRET, max_new_tokens=3, effect=False), session="the session")
        job._model = work
        job.run()
    text = capsys.readouterr().err
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert [line["ended"] for line in lines] == ["done", "failed"]
    assert lines[0].keys() == {
        *("at", "event", "visitor", "ended", "waited_s", "worked_s", "model", "new_tokens")
    }
    assert [line["model"] for line in lines] == ["smollm2", "another"]
    assert lines[0]["visitor"] == lines[1]["visitor"] != "the session" and len(lines[0]["visitor"]) == 8
    assert SECRET not in text and "the session" not in text


def test_an_unforeseen_error_is_logged_without_its_words(public, caplog):
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as error:
        journal.failed("run", error)
    assert SECRET not in caplog.text
    assert "a run failed: RuntimeError at test_an_unforeseen_error" in caplog.text


def test_nothing_is_written_where_one_is_alone(monkeypatch, capsys):
    monkeypatch.delenv(limits.PUBLIC, raising=False)
    journal.write("run", "s")
    assert capsys.readouterr().err == ""


# The server


def told(*more: str) -> list[str]:
    return _cli_app.options(cli.parser().parse_args(["app", *more]))


def test_what_streamlit_is_told():
    alone = told()
    assert "--server.address=127.0.0.1" in alone and "--browser.gatherUsageStats=false" in alone
    assert not any("Xsrf" in option for option in alone)
    found = told("--public", "--base-path", "/talks/mxviz/", "--host", "a.example.org", "--host", "*.b.org")
    assert set(_cli_app.PUBLIC_OPTIONS) <= set(found)
    assert {
        *("--server.address=0.0.0.0", "--browser.gatherUsageStats=false", "--server.maxUploadSize=20"),
        *("--server.baseUrlPath=/talks/mxviz", "--server.enableXsrfProtection=true"),
        *("--server.allowedHosts=a.example.org", "--server.allowedHosts=*.b.org"),
    } <= set(found)


@pytest.mark.parametrize(
    "wrong", [["--base-path", "../x"], ["--base-path", "a b"], ["--host", "a/b"], ["--host", "-x"]]
)
def test_a_path_or_host_that_is_none_is_one_line(wrong):
    with pytest.raises(ValueError, match="^(base path|host) .* is no (path|name); expected one such as"):
        told(wrong[0], wrong[1]) if wrong[1] != "-x" else told("--host=-x")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    log = tmp_path_factory.mktemp("public") / "log.txt"
    arguments = ("--public", "--base-path", "mxviz", "--host", "127.0.0.1")
    with serve(log, *arguments, base_path="/mxviz") as running:
        yield running


def asked(site, method: str, path: str, body: bytes | None = None, **headers: str):
    """Ask with the path as it is, not tidied."""
    connection = http.client.HTTPConnection(urlsplit(site.url).netloc, timeout=20)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read() if answer.status != 101 else b""
    connection.close()
    return found


def test_health_is_told_below_the_base_path(site):
    status, _, body = asked(site, "GET", "/mxviz/_stcore/health")
    assert (status, body) == (200, b"ok")


DEEP = "../" * 12
TRAVERSALS = [
    f"/mxviz/{DEEP}etc/passwd",
    f"/mxviz/static/{DEEP}etc/passwd",
    f"/mxviz/app/static/{DEEP}etc/passwd",
    "/mxviz/static/" + DEEP.replace("../", "%2e%2e%2f") + "etc/passwd",
    "/mxviz/static/" + DEEP.replace("../", "..%5c") + "etc/passwd",
    "/mxviz/media//etc/passwd",
    f"/mxviz/media/{DEEP}etc/passwd",
    f"/mxviz/component/x/{DEEP}etc/passwd",
    "/mxviz/_stcore/bidi-components/x//etc/passwd",
    "//etc/passwd",
    "/mxviz/.streamlit/config.toml",
    "/mxviz/app/static/app.py",
]


@pytest.mark.parametrize("path", TRAVERSALS)
def test_no_file_of_the_machine_is_served(site, path):
    status, _, body = asked(site, "GET", path)
    assert b"root:" not in body and b"gatherUsageStats" not in body and b"st.navigation" not in body
    assert (
        status in (301, 302, 303, 307, 400, 403, 404)
        or b"<!DOCTYPE html>" in body.lstrip()[:2000]
        or (b"<html" in body)
    )


UPLOAD = b'--b\r\nContent-Disposition: form-data; name="f"; filename="x.npy"\r\n\r\nhello\r\n--b--\r\n'
FORM = {"Content_Type": "multipart/form-data; boundary=b"}


def test_an_upload_needs_a_token_and_a_session(site):
    path = "/mxviz/_stcore/upload_file/no-session/some-file"
    assert asked(site, "PUT", path, UPLOAD, **FORM)[0] == 403
    _, headers, _ = asked(site, "GET", "/mxviz/_stcore/health")
    cookie = headers["set-cookie"].partition(";")[0]
    token = cookie.partition("=")[2]
    wrong = asked(site, "PUT", path, UPLOAD, Cookie=cookie, X_Xsrftoken="2|00|00|1", **FORM)
    assert wrong[0] == 403
    stranger = asked(site, "PUT", path, UPLOAD, Cookie=cookie, X_Xsrftoken=token, **FORM)
    assert stranger[0] == 400  # the token is right, but there is no such session


def shake_hands(site, **headers: str) -> int:
    usual = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    return asked(site, "GET", "/mxviz/_stcore/stream", **usual, **headers)[0]


def test_another_site_cannot_open_a_session(site):
    here = site.url.removesuffix("/mxviz")
    assert shake_hands(site, Origin=here) == 101
    assert shake_hands(site, Origin="https://evil.example") in (400, 403)
    assert shake_hands(site, Origin="http://evil.example", Host="evil.example") in (400, 403)


def test_the_server_says_nothing_of_its_machine(site):
    assert "Traceback" not in site.text()
    for path in ("/mxviz/", "/mxviz/_stcore/host-config", "/mxviz/_stcore/metrics"):
        body = asked(site, "GET", path)[2].decode(errors="replace")
        assert os.getcwd() not in body and os.path.expanduser("~") + "/" not in body
