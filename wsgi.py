"""The reference deployment: `flask --app wsgi`, `celery -A wsgi:celery worker`, `granian --interface wsgi wsgi:app`."""

from __future__ import annotations

from pathlib import Path

from webhooks import ConfigError
from workers import make_celery
from workers.reference import create_app

try:
    app = create_app(migrations=Path(__file__).parent / "migrations")
except ConfigError as error:
    raise SystemExit(f"This configuration cannot be used:\n{error}") from None
celery = make_celery(app)
