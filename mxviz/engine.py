"""The engine: three lanes that generate side by side from differently stored caches, and their measurement.

`exact` holds keys and values as they are, `micro` as the recipe says, `single` as the baseline says. Each
grows token by token and ends at its own end token; a run can be stopped between any two tokens.
"""

from __future__ import annotations

from mxviz._engine_conversation import Conversation
from mxviz._engine_effect import measure
from mxviz._engine_settings import Progress, Settings
from mxviz._engine_turn import OnProgress, ShouldStop
from mxviz.capture import Capture
from mxviz.models import Loaded

__all__ = ["Conversation", "Progress", "Settings", "measure", "run"]


def run(
    loaded: Loaded,
    settings: Settings,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Capture:
    """Generate in three lanes, measure, and return the record.

    The same settings give the same capture, timings apart, for the same number of torch threads. To go on
    from where a run ended, use a `Conversation`: this is its first turn.

    Args:
        loaded: the model; one run at a time uses it, others wait.
        settings: what to run.
        on_progress: called after every step, in this thread.
        should_stop: asked before every step of every lane, and before every layer of a pass over the whole
            text; a stopped run still gives a capture, with a note and without what was not measured.

    Raises:
        ValueError: for a prompt, length, recipe or layer that does not fit the model, a backend that is not
            here, or a stop before there was anything to record.
    """
    conversation = Conversation(loaded, settings)
    return conversation.ask(settings.prompt, on_progress=on_progress, should_stop=should_stop)
