"""The hall: who waits sees how long, who sits gets an equal share, and who leaves holds up nobody."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import tiny_text

from mxviz.engine import Conversation, Settings
from mxviz.views import engines, hall, jobs, keeper, memory, tabs
from mxviz.views.hall import Hall
from mxviz.views.keeper import Keeper


def started(*works) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def ended(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def until(true, limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


class Tabs:
    """Sessions of which some are open."""

    def __init__(self, *names: str) -> None:
        self.open = set(names)

    def is_active_session(self, session: str) -> bool:
        return session in self.open


@pytest.fixture
def browser_tabs(monkeypatch):
    found = Tabs("a", "b", "c")
    monkeypatch.setattr(tabs, "runtime", SimpleNamespace(exists=lambda: True, get_instance=lambda: found))
    return found


@pytest.fixture
def the_hall(monkeypatch):
    made = Hall(seats=2, most_waiting=3)
    monkeypatch.setattr(tabs, "HALL", made)
    return made


# Seats and the line


def test_a_line_tells_each_how_many_come_before(the_hall):
    sitting = [the_hall.enter(name) for name in "ab"]
    waiting = [the_hall.enter(name) for name in "cde"]
    assert [v.seated for v in (*sitting, *waiting)] == [True, True, False, False, False]
    assert [the_hall.words(v) for v in waiting] == [
        "yours is the next run, 2 under way",
        "1 run before yours, 2 under way",
        "2 runs before yours, 2 under way",
    ]
    assert the_hall.words(sitting[0]) == "taking turns with 1 other run"
    with pytest.raises(ValueError, match="^3 runs wait already, and no more fit; try again in a minute$"):
        the_hall.enter("f")
    the_hall.leave(waiting[0])  # gave up
    assert the_hall.words(waiting[2]) == "1 run before yours, 2 under way"
    the_hall.leave(sitting[1])
    assert waiting[1].seated and not waiting[2].seated
    assert the_hall.words(waiting[2]) == "yours is the next run, 2 under way"


def test_one_session_has_two_works_at_most(the_hall):
    the_hall.enter("a"), the_hall.enter("a")
    with pytest.raises(ValueError, match="let one end, or stop it"):
        the_hall.enter("a")
    assert not the_hall.enter("b").seated


def test_a_stop_and_a_long_wait_leave_the_line(the_hall):
    for name in "ab":
        the_hall.enter(name)
    with pytest.raises(ValueError, match="stopped before its turn came"), the_hall.seat(
        the_hall.enter("c"), lambda: True
    ):  # fmt: skip
        pytest.fail("it has no seat")
    the_hall.longest_wait_s = 0.05
    with pytest.raises(ValueError, match="no seat came free within 0 minutes"), the_hall.seat(
        the_hall.enter("d"), lambda: False
    ):  # fmt: skip
        pytest.fail("it has no seat")
    assert the_hall.words(the_hall.enter("e")).startswith("yours is the next run")


# Turns


def shares(made: Hall, sessions: list[str], steps: int = 240) -> dict[str, int]:
    """Let works of these sessions take steps until so many were taken; return how many each had."""
    taken: dict[int, int] = dict.fromkeys(range(len(sessions)), 0)
    ready = threading.Barrier(len(sessions))

    def work(number: int) -> None:
        with made.seat(made.enter(sessions[number]), lambda: False):
            ready.wait(10)
            made.acquire()
            while sum(taken.values()) < steps:
                taken[number] += 1
                time.sleep(0.0005)
                made.hand_on()
            made.release()

    ended(started(*(lambda n=n: work(n) for n in range(len(sessions)))))
    found: dict[str, int] = {}
    for number, session in enumerate(sessions):
        found[session] = found.get(session, 0) + taken[number]
    return found


def test_turns_are_equal():
    found = shares(Hall(seats=4), ["a", "b", "c", "d"])
    assert min(found.values()) >= 0.9 * sum(found.values()) / 4


def test_two_works_of_one_session_share_its_turns():
    found = shares(Hall(seats=3), ["a", "a", "b"])
    assert 0.8 <= found["a"] / found["b"] <= 1.25


def test_who_gave_up_waiting_holds_up_nobody():
    made = Hall()
    made.acquire()
    ended(started(lambda: made.acquire(timeout=0.01)))  # it asks once and never again
    made.release()
    assert made.acquire(timeout=3)
    made.release()
    with pytest.raises(RuntimeError, match="nobody has the turn"):
        made.release()


def test_a_wait_in_vain_keeps_its_place():
    made, order = Hall(), []
    made.acquire()

    def asks(name: str) -> None:
        while not made.acquire(timeout=0.02):
            pass
        order.append(name)
        made.release()

    first = started(lambda: asks("first"))
    until(lambda: len(made._asking) == 1)
    second = started(lambda: asks("second"))
    until(lambda: len(made._asking) == 2)
    time.sleep(0.1)
    made.release()
    ended(first + second)
    assert order == ["first", "second"]


# Runs side by side on one model


def job(model, session: str, tokens: int = 12, **more) -> jobs.Job:
    made = jobs.Job("tiny", Settings("hello", max_new_tokens=tokens, effect=False), session=session, **more)
    made._model = lambda: model
    return made


def shared(the_hall):
    return engines.replace(tiny_text.loaded(template=None), lock=the_hall)


def test_runs_side_by_side_write_what_each_writes_alone(the_hall, browser_tabs, monkeypatch):
    monkeypatch.setattr(tabs, "STEPS_A_TURN", 1)
    model = shared(the_hall)
    alone = [job(model, "a", 8), job(model, "b", 12)]
    for one in alone:
        one.run()
    together, order = [job(model, "a", 8), job(model, "b", 12)], []
    for one in together:
        take = one._take
        one._take = lambda p, one=one, take=take: (order.append(one.session), take(p))
    ended(started(*(one.run for one in together)))
    for one, other in zip(alone, together, strict=True):
        assert one.error is None and other.error is None
        assert one.capture.lanes == other.capture.lanes
        assert one.capture.storage == other.capture.storage
    assert sum(a != b for a, b in zip(order[:-1], order[1:], strict=True)) >= 8  # they did take turns
    assert model.model.config._attn_implementation == "sdpa" and not the_hall.locked()


def test_a_closed_tab_gives_the_engine_away_within_two_tokens(the_hall, browser_tabs, monkeypatch):
    monkeypatch.setattr(tabs, "GRACE_S", 0.5)
    model = shared(the_hall)
    gone, stays = job(model, "a", 2000), job(model, "b", 20)
    first = started(gone.run)
    until(lambda: gone.progress is not None and gone.progress.step > 3)
    browser_tabs.open.remove("a")
    held = gone.progress.step
    stays.run()
    assert stays.capture is not None and len(stays.capture.lanes["exact"].token_ids) == 20
    ended(first)
    assert gone.stop.is_set() and gone.progress.step <= held + 2


def test_a_tab_that_comes_back_in_time_loses_nothing(the_hall, browser_tabs):
    model = shared(the_hall)
    blinked, whole = job(model, "a", 60), job(model, "a", 60)
    whole.run()
    thread = started(blinked.run)
    until(lambda: blinked.progress is not None and blinked.progress.step > 3)
    browser_tabs.open.remove("a")
    until(lambda: not the_hall.locked())
    browser_tabs.open.add("a")
    ended(thread)
    assert blinked.capture.lanes == whole.capture.lanes


def test_a_run_that_ends_early_frees_its_seat(the_hall, browser_tabs):
    model = shared(the_hall)
    broken = job(model, "a")
    broken._model = lambda: 1 / 0
    broken.run()
    assert broken.done and "server's log" in broken.error
    assert the_hall._visitors == [] and the_hall._asking == {}


# Memory


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: …")]
)
def test_memory_that_ran_out_in_one_run_leaves_the_others(the_hall, browser_tabs, error):
    model, steps = shared(the_hall), []
    hungry, other = job(model, "a", 200), job(model, "b", 30)

    def take(progress):
        steps.append(progress)
        if len(steps) > 6:
            raise error

    hungry._take = take
    ended(started(hungry.run, other.run))
    assert hungry.error == "out of memory; the run ended: use a shorter text or a smaller model"
    assert other.error is None and len(other.capture.lanes["exact"].token_ids) == 30
    again = job(model, "a", 4)
    again.run()
    assert again.capture is not None and not the_hall.locked()


def test_a_run_that_would_not_fit_is_refused(the_hall, browser_tabs, monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: memory.KEPT_FREE + 1000)
    refused = job(shared(the_hall), "a")
    refused.run()
    assert refused.capture is None and refused.error.startswith("a run over ")
    assert "0 MiB can be had now; use a shorter prompt" in refused.error
    monkeypatch.setattr(memory, "free", lambda: memory.KEPT_FREE // 2 - 1)
    with pytest.raises(MemoryError):
        memory.check_still_free()


def test_a_run_needs_no_more_than_is_counted():
    model = tiny_text.loaded().model
    config = model.config
    one = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert 4 * one <= memory.of_run(model, 1) <= 16 * one + 4 * 24 * config.hidden_size
    assert memory.of_run(model, 100) == 100 * memory.of_run(model, 1)
    assert memory.free() > 0


# Models that nobody uses, and caches of tabs that are gone


@pytest.fixture
def models(monkeypatch):
    """Engines whose models are tiny and counted."""
    calls = []

    def load(name):
        calls.append(name)
        return tiny_text.loaded()

    monkeypatch.setattr("mxviz.models.load", load)
    made = engines._Engines()
    return made, calls


def test_idle_models_are_freed_and_those_in_use_are_not_loaded_twice(models):
    made, calls = models
    first = made.get("one")
    assert made.get("one") is first and first.lock is hall.HALL
    assert made.free_idle(idle_s=60) == [] and made.free_idle(busy={"one"}, idle_s=-1) == []
    assert made.free_idle(idle_s=-1) == ["one"]
    assert made.get("one") is first  # a run still held it
    made.free_idle(idle_s=-1)
    del first
    engines.gc.collect()
    assert made.names() == []
    for name in ("one", "two", "three"):
        made.get(name)
    engines.gc.collect()
    assert sorted(made.names()) == ["three", "two"] and calls == ["one", "one", "two", "three"]


def test_a_model_that_does_not_fit_takes_the_place_of_an_idle_one(models, monkeypatch):
    made, calls = models
    made.get("one")
    monkeypatch.setattr(memory, "of_files", lambda files: memory.KEPT_FREE)
    monkeypatch.setattr(memory, "free", lambda: memory.KEPT_FREE * (1 if made._held else 3))
    made.get("two")
    assert list(made._held) == ["two"] and calls == ["one", "two"]
    monkeypatch.setattr(memory, "free", lambda: memory.KEPT_FREE)
    with pytest.raises(ValueError, match="^three needs about 512 MiB of memory and 0 MiB can be had now; "):
        made.get("three")


def test_a_gone_tab_and_a_long_silence_free_the_caches(browser_tabs, monkeypatch):
    monkeypatch.setattr(keeper, "GONE_S", 0.0)
    loaded, made = tiny_text.loaded(), Keeper()
    talks = {}
    for session in ("a", "b"):
        talks[session] = Conversation(loaded, Settings("hello", max_new_tokens=2, effect=False))
        talks[session].ask("hello")
        made.keep(talks[session], session, "tiny")
    made.look_round()
    assert talks["a"].is_open and talks["b"].is_open
    browser_tabs.open.remove("a")
    time.sleep(0.01)
    made.look_round()
    assert not talks["a"].is_open and talks["b"].is_open and len(made._kept) == 1
    monkeypatch.setattr(keeper, "limits", lambda: SimpleNamespace(idle_talk_s=-1.0))
    made.look_round()
    assert not talks["b"].is_open and made._kept == []
