"""Conversation: three caches that stay after a run, so that the next prompt continues them.

Every lane goes on from its own answer, as it would in life: after the first turn they read different texts.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from mxviz import _engine_lanes as under_way
from mxviz._engine_lanes import LaneState
from mxviz._engine_record import layers_to_record
from mxviz._engine_settings import Settings
from mxviz._engine_steps import Stopped, end_tokens
from mxviz._engine_turn import OnProgress, ShouldStop, alone, finish, progress
from mxviz.cache import MXCache, attending_packed
from mxviz.capture import Capture, Turn
from mxviz.models import Loaded, encode


class _Kept(NamedTuple):
    """What stays of a lane between turns: its cache, and the tokens and messages so far."""

    cache: MXCache
    ids: tuple[int, ...]
    messages: tuple[dict[str, str], ...]


class Conversation:
    """The three lanes of a run, kept for the next turn.

    The model is held weakly: where it is freed, the caches are freed too.

    Args:
        loaded: the model; one turn at a time uses it, others wait.
        settings: recipe, baseline, lengths and sampling of every turn.
    """

    def __init__(self, loaded: Loaded, settings: Settings) -> None:
        self.settings = settings
        self.turns: tuple[Turn, ...] = ()
        kept: dict[str, _Kept] = {}
        self._kept = kept
        self._loaded = weakref.ref(loaded, lambda _: kept.clear())

    @property
    def is_open(self) -> bool:
        """Whether there are caches to go on with."""
        return bool(self._kept)

    def close(self) -> None:
        """Free the caches."""
        self._kept.clear()

    def ask(
        self,
        prompt: str,
        *,
        on_progress: OnProgress | None = None,
        should_stop: ShouldStop | None = None,
    ) -> Capture:
        """Read the next prompt in all lanes, let them answer, and return the record of all so far.

        The record's lanes are those of this turn; keys, values and tokens are the exact lane's from the first
        turn on; `turns` has a row for each. Stopped while it writes or measures, a turn keeps what it has;
        stopped while it reads on, every cache stands where it stood before. The same settings and prompts
        give the same captures, timings apart, for the same number of torch threads.

        Args:
            prompt: the user's text.
            on_progress: called after every step, in this thread.
            should_stop: asked before every step of every lane, and before every layer of a long pass.

        Raises:
            ValueError: as `mxviz.engine.run`, and where the caches were freed.
        """
        tell, stop = on_progress or (lambda _: None), should_stop or (lambda: False)
        loaded = self._loaded()
        if loaded is None or (self.turns and not self._kept):
            raise ValueError("the caches of this conversation were freed; start a new run")
        settings = replace(self.settings, prompt=prompt)
        lanes, read, notes = self._lanes(loaded, settings)
        with alone(loaded, tell, stop):
            started = time.perf_counter()
            with attending_packed(loaded.model, settings.backend):
                written = self._write(lanes, read, settings, tell, stop)
            self._keep(lanes, prompt)
            generated = time.perf_counter() - started
            ended = {"written": written, "generate_s": generated, "notes": notes}
            capture = finish(loaded, settings, lanes, tell, stop, **ended)
        self.turns += (_turn(prompt, lanes),)
        return replace(capture, turns=self.turns)

    def _lanes(
        self, loaded: Loaded, settings: Settings
    ) -> tuple[dict[str, LaneState], dict[str, tuple[int, ...]], tuple[str, ...]]:
        """Return the lanes of this turn, the tokens each has to read, and notes; nothing is touched yet."""
        if not self._kept:
            ids, notes = encode(loaded, settings.prompt, settings.raw)
            _check_fits(loaded, len(ids), settings, "shorten the prompt or ask for fewer new tokens")
            lanes = {
                name: LaneState(name, loaded, recipe, settings.backend, before=ids)
                for name, recipe in settings.recipes().items()
            }
            layers_to_record(lanes["exact"].cache, settings.layers)
            return lanes, dict.fromkeys(lanes, ids), notes
        lanes, read, said = {}, {}, []
        for name, recipe in settings.recipes().items():
            cache, ids, messages = self._kept[name]
            ids, new, note = continued(loaded, ids, (*messages, _said("user", settings.prompt)), settings.raw)
            before = (*ids, *new)
            _check_fits(loaded, len(before), settings, "start a new run or ask for fewer new tokens")
            lanes[name] = LaneState(name, loaded, recipe, settings.backend, cache=cache, before=before)
            read[name] = before[cache.get_seq_length() :]
            said += [note] if note else []
        return lanes, read, tuple(dict.fromkeys(said))

    @torch.inference_mode()
    def _write(
        self,
        lanes: dict[str, LaneState],
        read: dict[str, tuple[int, ...]],
        settings: Settings,
        tell: OnProgress,
        stop: ShouldStop,
    ) -> bool:
        """Read and decode; return whether it came to the end."""
        kept, total = dict(self._kept), settings.max_new_tokens
        self.close()  # while they move on, there is nothing to go back to
        reading = lambda done: tell(progress("prefill", done, len(lanes), lanes))  # noqa: E731
        if kept:
            try:
                under_way.read_on(lanes, read, stop, reading)
            except Stopped:
                self._kept.update(kept)
                raise ValueError(
                    "stopped before the turn was read; the conversation stands where it stood"
                ) from None
        elif not under_way.prefill_lanes(lanes, read["exact"], stop, reading):
            if lanes["exact"].logits is None:
                raise ValueError("stopped before the prompt was read; nothing was recorded")
            return False
        writing = lambda done: tell(progress("decode", done, total, lanes))  # noqa: E731
        return under_way.decode_lanes(lanes, settings, stop, writing, turn=len(self.turns))

    def _keep(self, lanes: dict[str, LaneState], prompt: str) -> None:
        """Keep what the next turn goes on from, unless a lane did not come to read its prompt."""
        if any(lane.logits is None for lane in lanes.values()):
            return
        for name, lane in lanes.items():
            messages = [
                message
                for turn in self.turns
                for message in (_said("user", turn.prompt), _said("assistant", turn.lanes[name].text))
            ]
            messages += [_said("user", prompt), _said("assistant", lane.stream.text)]
            self._kept[name] = _Kept(lane.cache, (*lane.before, *lane.ids), tuple(messages))


def continued(
    loaded: Loaded, ids: tuple[int, ...], messages: tuple[dict[str, str], ...], raw: bool
) -> tuple[tuple[int, ...], tuple[int, ...], str | None]:
    """Return how a conversation goes on after its tokens so far.

    Args:
        loaded: the model.
        ids: prompt and answer of all turns so far; the last need not be in the cache yet.
        messages: the same as messages, and the user's next one.
        raw: leave the chat template out.

    Returns:
        the tokens so far (without an end token at their end, which the template writes itself), those that
        follow, and what a reader should know, or None.
    """
    tokenizer, prompt = loaded.tokenizer, messages[-1]["content"]
    if ids[-1] in end_tokens(loaded.model, tokenizer):
        ids = ids[:-1]
    if raw or getattr(tokenizer, "chat_template", None) is None:
        note = None if raw else "the model has no chat template, so the next prompt follows an empty line"
        return ids, _tokens(tokenizer, f"\n\n{prompt}\n"), note
    whole = _rendered(tokenizer, messages)
    so_far = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if whole is not None and whole.startswith(so_far):
        return ids, _tokens(tokenizer, whole[len(so_far) :]), None
    alone = _rendered(tokenizer, messages[-1:])
    note = "the chat template does not continue the text so far, so the new turn was appended to it"
    return ids, _tokens(tokenizer, f"\n\n{prompt}\n" if alone is None else alone), note


def _rendered(tokenizer: Any, messages: tuple[dict[str, str], ...]) -> str | None:
    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception:  # a template is a program of its author's and may raise anything
        return None


def _tokens(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False).input_ids)


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _turn(prompt: str, lanes: dict[str, LaneState]) -> Turn:
    return Turn(
        prompt,
        {name: lane.wrote for name, lane in lanes.items()},
        {name: lane.cache.tokens_held for name, lane in lanes.items()},
        {name: lane.stored_bytes for name, lane in lanes.items()},
    )


def _check_fits(loaded: Loaded, tokens: int, settings: Settings, remedy: str) -> None:
    limit = loaded.context_length
    if limit is not None and tokens + settings.max_new_tokens > limit:
        raise ValueError(
            f"{tokens:,} prompt tokens and max_new_tokens {settings.max_new_tokens:,} do not fit "
            f"the model's context of {limit:,}; {remedy}"
        )
