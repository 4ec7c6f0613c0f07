"""One open issue per kind and endpoint: it opens and closes by itself, is told once each time, and keeps its evidence."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from ..inbox import Inbox
from ..inbox.marks import EVERYWHERE, Marks
from ..inbox.rows import aware
from .kinds import KINDS

__all__ = ["EVERYWHERE", "KINDS", "Finding", "Issue", "Issues", "Teller"]


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """One thing that is, or is not, as it should be on an endpoint."""

    endpoint: str
    kind: str
    good: bool
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Issue:
    """An issue as people are told of it."""

    id: int
    endpoint: str
    kind: str
    state: str
    """`open` or `closed`."""
    opened_at: datetime
    closed_at: datetime | None
    evidence: Mapping[str, Any]

    @property
    def detail(self) -> str:
        return str(self.evidence.get("detail", ""))

    @property
    def title(self) -> str:
        """One line for a subject."""
        over = " is over" if self.state == "closed" else ""
        return f"{self.endpoint}: {self.kind.replace('_', ' ')}{over}"

    @property
    def todo(self) -> str:
        return (
            KINDS[self.kind].todo.format(endpoint=self.endpoint) if self.kind in KINDS else "see its detail"
        )

    @property
    def text(self) -> str:
        """A few lines for a body."""
        if self.state == "closed":
            return f"{self.detail}\nIt was open from {self.opened_at:%Y-%m-%d %H:%M} to {self.closed_at:%Y-%m-%d %H:%M} UTC."
        means = KINDS[self.kind].means if self.kind in KINDS else ""
        return "\n".join(line for line in (means, self.detail, f"What to do: {self.todo}.") if line)


Teller = Callable[[Issue], None]
"""Tells somebody of an issue that has opened or is over."""


class Issues:
    """The issues of one inbox."""

    def __init__(self, inbox: Inbox, tellers: Sequence[Teller] = ()) -> None:
        self._inbox, self._tellers, self._marks = inbox, tellers, Marks(inbox)

    def enter(self, findings: Sequence[Finding]) -> None:
        """Open what is bad and close what is good, each once, then tell whoever has not been told."""
        open_ = self._open()
        for finding in findings:
            is_open = (finding.endpoint, finding.kind) in open_
            if self._is_sure(finding, is_open=is_open):
                if not finding.good:
                    self._put(finding)
                elif is_open:
                    self._close(finding)
        self.tell()

    def tell(self) -> int:
        """Tell of every issue that opened or closed and was not told of; by whichever process comes first, once."""
        issues = self._inbox.tables.issues
        told = 0
        for column, untold in (
            ("notified_at", issues.c.notified_at.is_(None)),
            # One that was over before anybody heard of it is told as over and nothing else.
            (
                "over_notified_at",
                issues.c.over_notified_at.is_(None)
                & (issues.c.state == "closed")
                & issues.c.notified_at.is_not(None),
            ),
        ):
            with self._inbox.engine.connect() as connection:
                waiting = list(connection.scalars(select(issues.c.id).where(untold).order_by(issues.c.id)))
            for id_ in waiting:
                with self._inbox.transaction() as connection:
                    row = connection.execute(
                        update(issues)
                        .where(issues.c.id == id_, untold)
                        .values({column: self._inbox.moment()})
                        .returning(issues)
                    ).one_or_none()
                if row is not None:
                    state = "open" if column == "notified_at" else "closed"
                    self._tell(_issue(row, state))
                    told += 1
        return told

    def close(self, id_: int) -> bool:
        """Close an issue by hand; whether it was open. It opens again if the next check finds it."""
        issues = self._inbox.tables.issues
        with self._inbox.transaction() as connection:
            closed = connection.execute(
                update(issues)
                .where(issues.c.id == id_, issues.c.state == "open")
                .values(state="closed", closed_at=self._inbox.moment())
            ).rowcount
        self.tell()
        return bool(closed)

    def _open(self) -> set[tuple[str, str]]:
        issues = self._inbox.tables.issues
        with self._inbox.engine.connect() as connection:
            rows = connection.execute(
                select(issues.c.endpoint, issues.c.kind).where(issues.c.state == "open")
            )
            return {(row.endpoint, row.kind) for row in rows}

    def _is_sure(self, finding: Finding, *, is_open: bool) -> bool:
        """Whether so many checks in a row said so as the kind asks for; one that changes nothing is not counted."""
        kind = KINDS.get(finding.kind)
        if kind is None or max(kind.opens_after, kind.closes_after) == 1:
            return True
        name = f"turning:{finding.kind}"
        times = int(self._marks.get(finding.endpoint, name) or 0)
        turns = is_open == finding.good
        wanted = kind.closes_after if finding.good else kind.opens_after
        now = (times + 1) % wanted if turns else 0
        if now != times:
            self._marks.put(finding.endpoint, name, now)
        return not turns or now == 0

    def _put(self, finding: Finding) -> None:
        """Open an issue, or bring the evidence of the open one up to date."""
        issues = self._inbox.tables.issues
        evidence = {"detail": finding.detail, **finding.evidence}
        mine = (issues.c.endpoint == finding.endpoint) & (issues.c.kind == finding.kind)
        try:
            with self._inbox.transaction() as connection:
                known = connection.execute(
                    update(issues).where(mine, issues.c.state == "open").values(evidence=evidence)
                ).rowcount
                if not known:
                    connection.execute(
                        insert(issues).values(
                            endpoint=finding.endpoint,
                            kind=finding.kind,
                            state="open",
                            opened_at=self._inbox.moment(),
                            evidence=evidence,
                        )
                    )
        except IntegrityError:
            return  # another process opened it at this moment

    def _close(self, finding: Finding) -> None:
        issues = self._inbox.tables.issues
        mine = (issues.c.endpoint == finding.endpoint) & (issues.c.kind == finding.kind)
        with self._inbox.transaction() as connection:
            connection.execute(
                update(issues)
                .where(mine, issues.c.state == "open")
                .values(state="closed", closed_at=self._inbox.moment())
            )

    def _tell(self, issue: Issue) -> None:
        if issue.state == "open":
            log.error("%s: %s: %s", issue.endpoint, issue.kind, issue.detail)
        else:
            log.warning("%s: %s is over", issue.endpoint, issue.kind)
        for teller in self._tellers:
            try:
                teller(issue)
            except Exception as error:  # noqa: BLE001 - whoever cannot be told must not stop the others
                log.warning("%s: %s could not be told (%s)", issue.endpoint, issue.kind, type(error).__name__)

    def purge(self, keep: int = 1000) -> int:
        """Forget closed issues but for the newest of them."""
        issues = self._inbox.tables.issues
        newest = select(issues.c.id).order_by(issues.c.id.desc()).limit(keep)
        with self._inbox.transaction() as connection:
            gone = connection.execute(
                issues.delete().where(issues.c.state == "closed", issues.c.id.not_in(newest))
            )
            return int(gone.rowcount)


def _issue(row: Any, state: str) -> Issue:
    return Issue(
        row.id,
        row.endpoint,
        row.kind,
        state,
        aware(row.opened_at),
        row.closed_at and aware(row.closed_at),
        row.evidence,
    )
