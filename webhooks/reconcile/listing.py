"""Compare a listing with our copies in the database, set against set: memory stays flat however long the listing is."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Self

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.sql import ColumnElement

from .. import jsontext
from ..endpoints import Endpoint
from ..inbox import Inbox, write_version
from ..inbox.rows import stored_key
from ..provider import Change, ObjectRef
from .limits import LISTED_CHUNK, RACY
from .places import Place

__all__ = ["Candidate", "Listing"]

MARKED = 10_000
"""Rows per transaction when copies are marked as not listed."""


@dataclass(frozen=True)
class Candidate:
    """An object that is to be fetched and compared."""

    account: str
    object: ObjectRef
    listed_at: datetime | None = None
    """When it changed or was created, as the listing says."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.account, self.object.kind, stored_key(self.object.id)


class Listing:
    """What a provider listed, as rows of `webhook_listed` until it has been compared: those of a run that was killed are
    there for the next one.

    The connection is held open, a transaction is not: the network is asked in between.
    """

    def __init__(self, inbox: Inbox, endpoint: Endpoint, connection: Connection, id_: int, size: int) -> None:
        self._inbox, self._endpoint, self._connection, self._id = inbox, endpoint, connection, id_
        keys = ("account", "kind", "key", "id", "path")
        self._listed = inbox.tables.listed
        self._mine = self._listed.c.listing == id_
        self._different = Table(
            f"webhook_different_{secrets.token_hex(4)}",
            MetaData(),
            Column("n", Integer, primary_key=True, autoincrement=True),
            *(Column(each, Text, nullable=False) for each in keys),
            Column("listed_at", DateTime(timezone=True)),
            prefixes=["TEMPORARY"],
        )
        self.size = size

    @classmethod
    @contextmanager
    def of(cls, inbox: Inbox, endpoint: Endpoint, place: Place | None = None) -> Iterator[Self]:
        """The listing of that place, to go on with; else an empty one, of which nothing is left at the end."""
        with inbox.engine.connect() as connection:
            made = cls(inbox, endpoint, connection, place.listing if place else 0, place.size if place else 0)
            if place is None:
                made._forget(made._mine)
            elif place.keeps and not place.resumed:
                made._forget(made._of_the_task(place))
            try:
                yield made
            finally:
                connection.rollback()
                connection.execute(text(f"DROP TABLE IF EXISTS {made._different.name}"))
                connection.commit()
                if place is None or not place.keeps:
                    made._forget(made._mine)

    def done(self) -> None:
        """Forget what was listed: it has been compared."""
        self._forget(self._mine)

    def _of_the_task(self, place: Place) -> ColumnElement[bool]:
        """The rows of this listing, and those that other runs of its task have left."""
        runs = self._inbox.tables.runs.c
        task = select(runs.id).where(runs.endpoint == place.endpoint, runs.task == place.task)
        return self._listed.c.listing.in_(task)

    def _forget(self, which: ColumnElement[bool]) -> None:
        """Delete listings, in steps along their numbers: no step looks for its rows among those that are gone."""
        c = self._listed.c
        listings = self._connection.execute(
            select(c.listing, func.max(c.n)).where(which).group_by(c.listing)
        ).all()
        self._connection.commit()
        for listing, last in listings:
            for start in range(0, last + 1, MARKED):
                step = c.n.between(start, start + MARKED - 1)
                self._connection.execute(delete(self._listed).where(c.listing == listing, step))
                self._connection.commit()

    def read(
        self,
        changes: Iterable[Change],
        note: Callable[[Connection, int], None] = lambda _connection, _size: None,
    ) -> Iterator[int]:
        """Take the changes in; after each chunk its size. `note` is called within the transaction of each chunk."""
        rest = iter(changes)
        while True:
            before = self.size
            self._write(self._rows(islice(rest, LISTED_CHUNK)))
            if self.size == before:
                return
            note(self._connection, self.size - before)
            self._connection.commit()
            yield self.size - before

    def _rows(self, changes: Iterable[Change]) -> Iterator[tuple[Any, ...]]:
        """One by one: a chunk of objects that are all held at once costs more than to compare them."""
        for change in changes:
            yield self._id, self.size, *self._row(change)
            self.size += 1

    def _row(self, change: Change) -> tuple[Any, ...]:
        ref, provider = change.object, self._endpoint.provider
        version: Any = change.changed_at
        if change.data is not None and provider.version is not None:
            version = provider.version(ref, change.data)
        # A version with a fine clock tells two states apart by itself; all else is told by the content: what is no
        # instant may be a rank that two states share, or seconds in which two changes fit.
        if provider.version is None or not isinstance(version, datetime):
            version = None
        certain = version is not None and version.microsecond != 0
        digest = None if certain or change.data is None else jsontext.digest(change.data)
        fresh_after = version + RACY if isinstance(version, datetime) else None
        return (
            change.account,
            ref.kind,
            stored_key(ref.id),
            ref.id,
            ref.path,
            write_version(version),
            digest,
            fresh_after,
            change.changed_at,
        )

    def _write(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """All rows are read before the database is asked for anything: reading them may ask the network."""
        names = [column.name for column in self._listed.columns]
        if self._inbox.is_sqlite:
            values = [dict(zip(names, row, strict=True)) for row in rows]
            if values:
                self._connection.execute(insert(self._listed), values)
            return
        lines = "".join(map(_line, rows))  # handed over row by row it would take twice as long
        if lines:
            raw: Any = self._connection.connection.cursor()
            with raw.copy(f"COPY {self._listed.name} ({', '.join(names)}) FROM STDIN") as copy:
                copy.write(lines)
            raw.close()

    def differing(self, size: int) -> Iterator[list[Candidate]]:
        """The listed objects of which we have no copy, or another one as far as the listing can tell."""
        self._join()
        last = 0
        while True:
            d = self._different.c
            rows = self._connection.execute(
                select(self._different).where(d.n > last).order_by(d.n).limit(size)
            ).all()
            self._connection.commit()
            if not rows:
                return
            last = rows[-1].n
            yield [
                Candidate(row.account, ObjectRef(row.kind, row.id, row.path), _aware(row.listed_at))
                for row in rows
            ]

    def _join(self) -> None:
        shown, o = self._listed.c, self._inbox.tables.objects.c
        same_version = and_(
            shown.version == o.version, or_(shown.fresh_after.is_(None), o.as_of > shown.fresh_after)
        )
        same = and_(o.deleted_at.is_(None), or_(same_version, shown.digest == o.digest))
        joined = self._listed.outerjoin(
            self._inbox.tables.objects,
            and_(
                o.endpoint == self._endpoint.name,
                o.account == shown.account,
                o.kind == shown.kind,
                o.id == shown.key,
            ),
        )
        wanted = (
            select(
                shown.account,
                shown.kind,
                shown.key,
                shown.id,
                func.max(shown.path),
                func.max(shown.listed_at),
            )
            .select_from(joined)
            .where(self._mine, ~func.coalesce(same, False))
            .group_by(shown.account, shown.kind, shown.key, shown.id)
        )
        if not self._inbox.is_sqlite:
            self._connection.execute(text(f"ANALYZE {self._listed.name}"))
        self._different.create(self._connection)
        self._connection.execute(
            insert(self._different).from_select(["account", "kind", "key", "id", "path", "listed_at"], wanted)
        )
        self._connection.commit()

    def mark_unlisted(self, before: datetime) -> int:
        """Mark our copies from before that moment which the listing did not show; return how many those are.

        Not shown is not gone: a full sweep asks for each of them.
        """
        objects, shown = self._inbox.tables.objects, self._listed.c
        o = objects.c
        # SQLite makes an index of the one and PostgreSQL a hash join of the other.
        if self._inbox.is_sqlite:
            keys_shown = select(shown.account, shown.kind, shown.key).where(self._mine)
            is_unlisted: ColumnElement[bool] = tuple_(o.account, o.kind, o.id).not_in(keys_shown)
        else:
            same = (shown.account == o.account, shown.kind == o.kind, shown.key == o.id)
            is_unlisted = ~exists().where(self._mine, *same)
        wanted = (
            select(o.account, o.kind, o.id)
            .where(
                o.endpoint == self._endpoint.name,
                o.deleted_at.is_(None),
                o.unlisted_at.is_(None),
                o.as_of < before,
                is_unlisted,
            )
            .limit(MARKED)
        )
        total = 0
        while True:
            keys = wanted.subquery()
            marked = self._connection.execute(
                update(objects)
                .where(
                    o.endpoint == self._endpoint.name,
                    exists().where(keys.c.account == o.account, keys.c.kind == o.kind, keys.c.id == o.id),
                )
                .values(unlisted_at=self._inbox.moment())
            ).rowcount
            self._connection.commit()
            total += marked
            if marked < MARKED:
                return total


def _line(row: tuple[Any, ...]) -> str:
    """A row as COPY reads it; its texts are looked at together, which is twice as fast as one by one."""
    listing, n, account, kind, key, id_, path, version, digest, fresh_after, listed_at = row
    texts = f"{account}\t{kind}\t{key}\t{id_}\t{path}"
    if "\\" in texts or texts.count("\t") > 4 or not texts.replace("\t", "").isprintable():
        texts = "\t".join(map(_field, row[2:7]))
    others = f"{_field(version)}\t{digest or NULL}\t{fresh_after or NULL}\t{listed_at or NULL}"
    return f"{listing}\t{n}\t{texts}\t{others}\n"


def _field(value: Any) -> str:
    if value is None:
        return "\\N"
    if not isinstance(value, str):
        return str(value)
    return value if value.isprintable() and "\\" not in value else value.translate(_ESCAPED)


NULL = "\\N"
_ESCAPED = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": None})


def _aware(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
