"""Actions come from our own forms, sent by whoever opened the page: nobody else's page can send them.

A random value in a cookie (`SameSite=Strict`, not readable by scripts, for the dashboard's path only), and the same value
in the form, signed with the app's secret key. A host's own protection may check the form as well: its token is in it too.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from hmac import compare_digest
from typing import Any

from flask import Response, abort, current_app, g, request, url_for
from itsdangerous import BadSignature, URLSafeTimedSerializer

__all__ = ["Forms"]

COOKIE = "webhooks_dashboard"
AGE = 12 * 3600
"""Seconds. A page that was left open for longer has to be loaded again."""


class Forms:
    """Tokens of one blueprint."""

    def usable(self) -> bool:
        """Whether there can be actions: without a secret key nothing can be signed, and the pages are for reading only."""
        return bool(current_app.secret_key)

    def token(self) -> str:
        """What a form on this page holds."""
        value = request.cookies.get(COOKIE) or ""
        if len(value) != 43:
            value = g.setdefault("webhooks_cookie", secrets.token_urlsafe(32))
        return self._signer().dumps(value)

    def seal(self, response: Response) -> Response:
        """Set the cookie that this page's forms belong to, if it is new."""
        value = g.get("webhooks_cookie")
        if value is not None:
            response.set_cookie(
                COOKIE,
                value,
                path=url_for(".overview"),
                secure=request.is_secure,
                httponly=True,
                samesite="Strict",
            )
        return response

    def required(self, action: Callable[..., Any]) -> Callable[..., Any]:
        """The action, refused (400) unless it was asked for by a form of ours."""

        @functools.wraps(action)
        def checked(**arguments: Any) -> Any:
            if not self.usable():
                abort(400, "set SECRET_KEY: without it no form can be signed")
            if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
                abort(400)
            try:
                value = self._signer().loads(request.form.get("token", ""), max_age=AGE)
            except BadSignature:
                abort(400, "this page is too old; load it again")
            if not compare_digest(str(value).encode(), request.cookies.get(COOKIE, "").encode()):
                abort(400, "this page is too old; load it again")
            return action(**arguments)

        return checked

    def _signer(self) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(current_app.secret_key or "", salt="webhooks-dashboard")
