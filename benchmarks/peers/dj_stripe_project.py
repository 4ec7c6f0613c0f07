"""A Django project with dj-stripe as its documentation says, in one file; runs in the peer's own environment.

`python dj_stripe_project.py` makes the tables and the endpoint; `dj_stripe_project:app` is the WSGI app. With STORE_ONLY its
callback leaves the event to somebody else, as its documentation advises for a task queue; nobody takes it there.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.urls import include, path

UUID = os.environ["ENDPOINT"]

database = urlsplit(os.environ["DATABASE_URL"])


def store_only(trigger: Any, **_: Any) -> None:
    """The trigger is stored before and after this; nothing else happens."""


settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": database.path[1:],
            "USER": database.username,
            "PASSWORD": database.password,
            "HOST": database.hostname,
            "PORT": database.port,
            "CONN_MAX_AGE": None,  # connections are kept
        }
    },
    DJSTRIPE_FOREIGN_KEY_TO_FIELD="id",
    DJSTRIPE_WEBHOOK_EVENT_CALLBACK=store_only if os.environ.get("STORE_ONLY") else None,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "djstripe"],
    LOGGING={"version": 1, "root": {"level": "ERROR"}},
    ROOT_URLCONF=__name__,
    SECRET_KEY="not a secret",
    STRIPE_API_HOST=os.environ["STRIPE_API"],
    STRIPE_LIVE_MODE=False,
    STRIPE_TEST_SECRET_KEY=os.environ["API_KEY"],
    USE_I18N=False,
    USE_TZ=True,
)
django.setup()
urlpatterns = [path("stripe/", include("djstripe.urls", namespace="djstripe"))]

if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    from djstripe.models import Account, APIKey, WebhookEndpoint

    account = Account.get_or_retrieve_for_api_key(os.environ["API_KEY"])
    assert APIKey.objects.get(secret=os.environ["API_KEY"]).djstripe_owner_account == account
    WebhookEndpoint.objects.create(
        id="we_benchmark",
        djstripe_uuid=UUID,
        djstripe_owner_account=account,
        livemode=False,
        secret=os.environ["SECRET"],
        status="enabled",
        url=f"https://benchmark.example.test/stripe/webhook/{UUID}/",
        enabled_events=["*"],
        api_version="",
    )
else:
    app = get_wsgi_application()
