"""Memory: how much is free, and a refusal in one line before the machine runs out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MIB = 1 << 20
KEPT_FREE = 512 * MIB
"""What stays free for the pages, the system and what was not foreseen."""

_GROUP = Path("/sys/fs/cgroup")
_SAYS = ("can't allocate memory", "out of memory", "not enough memory")


def free() -> int | None:
    """Return the bytes that can still be had, within a container's limit too; None where nobody says."""
    found = [n for n in (_of_machine(), _of_group()) if n is not None]
    return min(found) if found else None


def check_room(need: int, what: str, remedy: str) -> None:
    """Refuse what would not fit.

    Args:
        need: bytes it takes.
        what: what takes them, for the line.
        remedy: what to do instead.

    Raises:
        ValueError: where less than `KEPT_FREE` would stay free.
    """
    there = free()
    if there is not None and there - need < KEPT_FREE:
        had = _mib(max(0, there - KEPT_FREE))
        raise ValueError(f"{what} needs about {_mib(need)} of memory and {had} can be had now; {remedy}")


def check_still_free() -> None:
    """Give up while others can go on.

    Raises:
        MemoryError: where nearly nothing is free any more.
    """
    there = free()
    if there is not None and there < KEPT_FREE // 2:
        raise MemoryError("little memory is left")


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch's are RuntimeErrors."""
    told = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in told for words in _SAYS)
    )


def of_run(model: Any, tokens: int) -> int:
    """Return about how many bytes a run over so many tokens takes: three caches, their record, its copies.

    Args:
        model: of transformers; counted by its config, at four bytes a number.
        tokens: of prompt and answer.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 1)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    numbers = 2 * tokens * config.num_hidden_layers * heads * width
    return 4 * _COPIES * numbers + 4 * _ACTIVATIONS * tokens * config.hidden_size


_COPIES = 6  # exact, recorded, micro and single at their widest, the capture's own, keys before RoPE
_ACTIVATIONS = 24  # hidden states a pass holds at once


def of_files(files: list[Path]) -> int:
    """Return about how many bytes the weights in some files take once they are float32."""
    return sum(_GROWS.get(file.suffix, 2) * file.stat().st_size for file in files)


_GROWS = {".gguf": 8}  # 4 bits become 32


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _of_group() -> int | None:
    """What a container's limit leaves; what it holds of files can be had again."""
    try:
        limit, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        held = dict(line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return limit - used + int(held.get("inactive_file", 0))
    except (OSError, ValueError):  # no such files, or "max"
        return None


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
