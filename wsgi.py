"""The reference deployment: `flask --app wsgi`, `celery -A wsgi:celery worker`, `granian --interface wsgi wsgi:app`."""

from __future__ import annotations

from pathlib import Path

from workers import make_celery
from workers.reference import create_app

app = create_app(migrations=Path(__file__).parent / "migrations")
celery = make_celery(app)
