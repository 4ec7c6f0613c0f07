"""The Celery side: `celery -A wsgi:celery worker`, `… beat`."""

from .app import adopt, make_celery
from .reference import create_app

__all__ = ["adopt", "create_app", "make_celery"]
