"""The Celery side: `celery -A wsgi:celery worker`, `… beat`."""

from .app import adopt, make_celery

__all__ = ["adopt", "make_celery"]
