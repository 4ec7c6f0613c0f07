"""The private blueprint: what operators see and do, in a browser. The host registers it and says who may look.

No script, no cookie but one against forged forms, nothing from other hosts; every text of others is escaped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, abort, current_app, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue
from sqlalchemy.exc import DBAPIError

from ..errors import ConfigError
from ..models import EFFECT_STATES, OUTCOMES, STATES
from ..operating import holding, queries, redriving, settling, standing
from ..operating.explaining import explained, parts
from ..state import EXTENSION, State
from .forms import Forms
from .reading import FILTERS, Page, body_shown, data_shown, headers_shown, page_of, shown, when

__all__ = ["Guard", "dashboard"]

Guard = Callable[[], Any]
"""Asked before every page and action; see `dashboard`."""

RUNS_SHOWN = 50
EFFECTS_SHOWN = 100
OBJECTS_SHOWN = 100

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""On every page: no script may run, nobody may frame it, and no copy stays behind."""


def dashboard(guard: Guard) -> Blueprint:
    """The blueprint. `guard` is asked before every page and every action: only True lets in; a `Response` (a redirect to
    your login page) is sent as it is; anything else is 403. Raises ConfigError if it cannot be called."""
    if not callable(guard):
        raise ConfigError("dashboard(guard=…) needs a function that returns True for those who may look")
    made = Blueprint(
        "webhooks_dashboard",
        __name__,
        template_folder="templates",
        static_folder="static",
        static_url_path="/static",
    )
    forms = Forms()

    @made.before_request
    def ask() -> ResponseReturnValue | None:
        answer = guard()
        if answer is True:
            return None
        if not answer or not isinstance(answer, Response):
            abort(403)
        return answer

    @made.after_request
    def protect(response: Response) -> Response:
        for name, value in HEADERS.items():
            response.headers[name] = value
        return forms.seal(response)

    @made.errorhandler(DBAPIError)
    def away(error: DBAPIError) -> ResponseReturnValue:
        current_app.logger.warning("dashboard: the database does not answer (%s)", type(error.orig).__name__)
        return render_template("webhooks/away.html"), 503

    @made.context_processor
    def for_all_pages() -> dict[str, Any]:
        return {"token": forms.token, "may_act": forms.usable(), "when": when}

    made.add_url_rule("/", "overview", overview)
    made.add_url_rule("/events", "events", events)
    made.add_url_rule("/events/<int:event_id>", "event", event)
    made.add_url_rule("/objects", "objects", objects)
    made.add_url_rule("/effects", "effects", effects)
    made.add_url_rule("/issues", "issues", issues)
    made.add_url_rule("/runs", "runs", runs)
    for rule, action in (
        ("/events/<int:event_id>/redrive", redrive),
        ("/endpoints/<name>/pause", pause),
        ("/endpoints/<name>/resume", resume),
        ("/effects/settle", settle),
    ):
        made.add_url_rule(rule, action.__name__, forms.required(action), methods=["POST"])
    return made


# -- pages


def overview() -> ResponseReturnValue:
    """Every endpoint, the open issues, and what hosts keep in their spools."""
    inbox = _state()
    found = standing.status(inbox)
    return render_template(
        "webhooks/overview.html",
        endpoints=shown(found),
        paused={
            row["endpoint"] for row in found for hold in row["holds"] if hold["reason"] == holding.PAUSED
        },
        issues=shown(standing.issues(inbox)),
        spools=[shown(row) for row in standing.spools(inbox) if row["rows"] or row["trouble"]],
        now=queries.now(inbox),
    )


def events() -> ResponseReturnValue:
    """The newest events that fit, a page at a time."""
    inbox = _state()
    page: Page = page_of(request.args, inbox.endpoints)
    return render_template(
        "webhooks/events.html",
        events=shown(page.rows(inbox)),
        page=page,
        filters=FILTERS,
        choices={"at": list(inbox.endpoints), "state": list(STATES), "outcome": list(OUTCOMES)},
    )


def event(event_id: int) -> ResponseReturnValue:
    """One event: why it is as it is, and what was kept of it. 404 if there is none."""
    inbox = _state()
    row = _event(inbox, event_id)
    found = parts(inbox, row)
    body, headers = queries.kept(inbox, event_id)
    return render_template(
        "webhooks/event.html",
        event=shown(row),
        sentences=shown(list(explained(found, queries.now(inbox)))),
        effects=shown(found["effects"]),
        body=body_shown(body),
        headers=headers_shown(headers),
    )


def objects() -> ResponseReturnValue:
    """Our copies that were written last, or those of one kind and id."""
    inbox = _state()
    wanted = {name: request.args.get(name, "").strip() or None for name in ("endpoint", "kind", "id")}
    found = queries.objects(
        inbox, endpoint=wanted["endpoint"], kind=wanted["kind"], id_=wanted["id"], limit=OBJECTS_SHOWN
    )
    rows = [shown(row) | {"data": data_shown(row["data"])} for row in found]
    return render_template(
        "webhooks/objects.html", objects=rows, wanted=wanted, endpoints=list(inbox.endpoints)
    )


def effects() -> ResponseReturnValue:
    """The newest side effects, those first that a person has to decide."""
    inbox = _state()
    wanted = request.args.get("state") or None
    found = queries.newest_effects(
        inbox, states=(wanted,) if wanted in EFFECT_STATES else (), limit=EFFECTS_SHOWN
    )
    return render_template("webhooks/effects.html", effects=shown(found), states=EFFECT_STATES, wanted=wanted)


def issues() -> ResponseReturnValue:
    """Open issues, and those of the past."""
    inbox = _state()
    found = standing.issues(inbox, closed=True)[::-1]
    return render_template("webhooks/issues.html", issues=shown(found))


def runs() -> ResponseReturnValue:
    """What recover, reconcile, check and audit did last."""
    found = standing.runs(_state(), limit=RUNS_SHOWN)[::-1]
    return render_template("webhooks/runs.html", runs=shown(found))


# -- actions


def redrive(event_id: int) -> ResponseReturnValue:
    """Try a dead event again."""
    inbox = _state()
    redriving.redrive(inbox, [_event(inbox, event_id)])
    return redirect(url_for(".event", event_id=event_id), 303)


def pause(name: str) -> ResponseReturnValue:
    """Apply nothing of an endpoint until it is resumed."""
    inbox = _state()
    if name not in inbox.endpoints:
        abort(404)
    holding.pause(inbox, inbox.endpoints[name])
    return redirect(url_for(".overview"), 303)


def resume(name: str) -> ResponseReturnValue:
    """Apply the endpoint's events again."""
    inbox = _state()
    if name not in inbox.endpoints:
        abort(404)
    holding.resume(inbox, inbox.endpoints[name])
    return redirect(url_for(".overview"), 303)


def settle() -> ResponseReturnValue:
    """Say what became of an unknown effect."""
    inbox = _state()
    decision = request.form.get("decision")
    if decision not in {"done", "again"}:
        abort(400)
    settling.settle(inbox, request.form.get("key", ""), done=decision == "done")
    return redirect(url_for(".effects", state="unknown"), 303)


# -- parts


def _state() -> State:
    found = current_app.extensions.get(EXTENSION)
    if not isinstance(found, State):
        raise ConfigError("call webhooks.init_app(app) first")
    found.check()
    return found


def _event(inbox: State, event_id: int) -> dict[str, Any]:
    found = queries.events_with_ids(inbox, [event_id]) if event_id < 2**63 else []
    if not found:
        abort(404)
    return found[0]
