"""What operators see and do, whether they use the command line or the dashboard."""

from . import holding, queries, redriving, settling, standing

__all__ = ["holding", "queries", "redriving", "settling", "standing"]
