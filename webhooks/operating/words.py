"""How instants, lengths of time and texts of others are written for people, on a terminal and on a page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["ago", "duration", "iso", "plain", "utc"]


def utc(moment: datetime | None) -> datetime | None:
    """The instant, aware and in UTC, as neither SQLite nor PostgreSQL gives it out."""
    if moment is None:
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def iso(moment: datetime) -> str:
    """ISO 8601 in UTC, with microseconds and Z."""
    found = utc(moment)
    assert found is not None
    return found.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain(value: Any) -> str:
    """A text of somebody else's without anything that could move the cursor or colour the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in str(value))


def duration(length: timedelta) -> str:
    """A length of time as people say it: `45 s`, `12 min`, `3 h`, `2.5 d`."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * size or (abs(seconds) >= size and seconds % size == 0):
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"


def ago(moment: datetime, now: datetime) -> str:
    """An instant for a sentence: to the second, and how far from now."""
    then = utc(moment)
    assert then is not None
    distance = now - then
    relative = f"{duration(distance)} ago" if distance >= timedelta(0) else f"in {duration(-distance)}"
    return f"{then:%Y-%m-%d %H:%M:%S} UTC ({relative})"
