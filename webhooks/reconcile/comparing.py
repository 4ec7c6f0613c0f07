"""Fetch objects, compare them with our copies, and record an event for each that differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select, tuple_, update

from .. import jsontext
from ..api import Apis, Priority
from ..endpoints import Endpoint
from ..errors import ApiRefused, GiveUp, NotFetchable
from ..inbox import Arrival, Inbox
from ..inbox.rows import stored_key
from ..jsontext import Json
from .causes import cause_of
from .late import Late
from .listing import Candidate
from .runs import Drift, Run

__all__ = ["Comparing", "Verdict", "differences"]


Verdict = Literal["equal", "drifted", "in_flight", "unknown"]
"""`in_flight`: open events will bring it up to date. `unknown`: the provider's API does not serve it."""


@dataclass
class Comparing:
    """Compares on one inbox."""

    inbox: Inbox
    apis: Apis
    late: Late
    began: dict[str, datetime] = field(default_factory=dict)
    """Endpoint → when we began to watch it: what happened before is history and decides no flow."""

    def look(
        self,
        endpoint: Endpoint,
        candidates: Sequence[Candidate],
        run: Run,
        *,
        priority: Priority = "reconcile",
        dry: bool = False,
    ) -> dict[tuple[str, str, str], Verdict]:
        """Fetch each object and compare. What differs is counted with its cause and, unless `dry`, mended by an event.

        An object with open events is left to them. A copy that was written while we asked is not compared: whoever wrote
        it asked later than we read. Returns the verdict on each.
        """
        verdicts: dict[tuple[str, str, str], Verdict] = {}
        candidates = list({candidate.key: candidate for candidate in candidates}.values())
        busy = self._in_flight(endpoint, candidates)
        before = self._stored(endpoint, candidates)
        equal: list[tuple[Candidate, Json]] = []
        different: list[tuple[Candidate, Json]] = []
        for candidate in candidates:
            if candidate.key in busy:
                verdicts[candidate.key] = "in_flight"
                continue
            try:
                current = self._fetch(endpoint, candidate, priority)
            except _NotServed:
                verdicts[candidate.key] = "unknown"
                equal.append((candidate, None))
                continue
            same = _is_same(before.get(candidate.key), current)
            (equal if same else different).append((candidate, current))
            verdicts[candidate.key] = "equal" if same else "drifted"
        now = self._stored(endpoint, [candidate for candidate, _ in different])
        busy = self._in_flight(endpoint, [candidate for candidate, _ in different])
        arrivals: list[Arrival] = []
        for candidate, current in different:
            ours = now.get(candidate.key)
            if candidate.key in busy or _claim(ours) != _claim(before.get(candidate.key)):
                verdicts[candidate.key] = "in_flight"
                continue
            arrivals += self._found(endpoint, candidate, ours, current, run, dry=dry)
        if not dry:
            recorded = self.inbox.record(arrivals)
            run.healed += sum(
                r.new for r, a in zip(recorded, arrivals, strict=True) if not a.dedup_key.startswith("late:")
            )
            self._note_checked(endpoint, equal)
        return verdicts

    def _found(
        self, endpoint: Endpoint, candidate: Candidate, ours: Any, current: Json, run: Run, *, dry: bool
    ) -> list[Arrival]:
        ref, account = candidate.object, candidate.account
        cause = cause_of(self.inbox, endpoint, account, ref, ours, current)
        mine = None if ours is None or ours.deleted_at is not None else ours.data
        drift = Drift(endpoint.name, ref.kind, ref.id, account, cause, differences(mine, current))
        run.count(drift)
        if dry:
            run.drifts.append(drift)
            return []
        digest = None if current is None else jsontext.digest(current)
        claim_no = 0 if ours is None else ours.claim_no
        heal = Arrival(
            endpoint.name,
            stored_key(f"reconcile:{account}:{ref.kind}:{ref.id}:{claim_no}:{digest}"),
            origin="reconcile",
            type=f"reconcile.{ref.kind}",
            object=ref,
            account=account,
            gone=current is None,
            correlation=cause,
            body=jsontext.dumps({"reconcile": ref.kind, "id": ref.id, "cause": cause}),
        )
        return [heal, *self._late_flows(endpoint, candidate, ours, current)]

    def _late_flows(
        self, endpoint: Endpoint, candidate: Candidate, ours: Any, current: Json
    ) -> list[Arrival]:
        began = self.began.get(endpoint.name)
        watched = ours is not None or (
            began is not None and candidate.listed_at is not None and candidate.listed_at >= began
        )
        if not watched:
            return []
        return list(self.late.arrivals(endpoint, candidate.account, candidate.object, current))

    def _fetch(self, endpoint: Endpoint, candidate: Candidate, priority: Priority) -> Json:
        assert endpoint.provider.fetch is not None
        try:
            api = self.apis.of(endpoint, candidate.account, priority=priority)
            return endpoint.provider.fetch(api, candidate.object)
        except NotFetchable as reason:
            raise _NotServed from reason
        except ApiRefused as refusal:
            if refusal.http_status in {401, 403}:
                raise  # our credentials: the next object would fare no better
            raise _NotServed from refusal

    def _stored(self, endpoint: Endpoint, candidates: Sequence[Candidate]) -> dict[tuple[str, str, str], Any]:
        o = self.inbox.tables.objects.c
        if not candidates:
            return {}
        keys = [candidate.key for candidate in candidates]
        with self.inbox.engine.connect() as connection:
            rows = connection.execute(
                select(
                    o.account, o.kind, o.id, o.digest, o.claim_no, o.data, o.deleted_at, o.as_of, o.version
                ).where(o.endpoint == endpoint.name, tuple_(o.account, o.kind, o.id).in_(keys))
            ).all()
        return {(row.account, row.kind, row.id): row for row in rows}

    def _in_flight(self, endpoint: Endpoint, candidates: Sequence[Candidate]) -> set[tuple[str, str, str]]:
        e = self.inbox.tables.events.c
        if not candidates:
            return set()
        keys = [(candidate.key[1], candidate.key[2]) for candidate in candidates]
        with self.inbox.engine.connect() as connection:
            rows = connection.execute(
                select(e.account, e.object_kind, e.object_id)
                .where(
                    e.endpoint == endpoint.name,
                    tuple_(e.object_kind, e.object_id).in_(keys),
                    e.state.in_(["pending", "applying"]),
                )
                .distinct()
            ).all()
        return {(row.account, row.object_kind, row.object_id) for row in rows}

    def _note_checked(self, endpoint: Endpoint, equal: Sequence[tuple[Candidate, Json]]) -> None:
        """Enter that these copies were looked at, and which of them are in their last state."""
        objects, final = self.inbox.tables.objects, endpoint.provider.final
        settled: dict[bool, list[tuple[str, str, str]]] = {}
        for candidate, current in equal:
            last = current is not None and final.get(candidate.object.kind, _never)(current)
            settled.setdefault(last, []).append(candidate.key)
        o = objects.c
        with self.inbox.transaction() as connection:
            for last, keys in settled.items():
                mine = (o.endpoint == endpoint.name) & tuple_(o.account, o.kind, o.id).in_(sorted(keys))
                connection.execute(
                    update(objects)
                    .where(mine)
                    .values(
                        checked_at=self.inbox.moment(),
                        unlisted_at=None,
                        settled=True if last else objects.c.settled,
                    )
                )


class _NotServed(GiveUp):
    """The provider's API has no answer about this object."""

    def __init__(self) -> None:
        super().__init__("not served")


def _never(_data: Json) -> bool:
    return False


def _claim(row: Any) -> int | None:
    return None if row is None else int(row.claim_no)


def _is_same(ours: Any, current: Json) -> bool:
    """Whether our copy is what was fetched; what is kept as data is compared itself and not by its note."""
    if current is None:
        return ours is None or ours.deleted_at is not None
    if ours is None or ours.deleted_at is not None:
        return False
    kept = ours.digest if ours.data is None else jsontext.digest(ours.data)
    return bool(kept == jsontext.digest(current))


def differences(ours: Json, theirs: Json, path: str = "") -> list[tuple[str, Json, Json]]:
    """The fields in which two documents differ: (path, ours, theirs)."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        found = []
        for key in sorted({*ours, *theirs}):
            found += differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        return found
    return [] if ours == theirs else [(path or "(all)", ours, theirs)]
