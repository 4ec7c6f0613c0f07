"""`flask webhooks demo`: the main job on real processes, with a provider that duplicates, reorders and loses."""

from .command import demo

__all__ = ["demo"]
