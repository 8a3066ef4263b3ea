"""Online learning: a model that learns from a stream, and is served while it does."""

from sparkdl.online.publisher import Publisher
from sparkdl.online.query import OnlineQuery
from sparkdl.online.trainer import OnlineTrainer

__all__ = ["OnlineQuery", "OnlineTrainer", "Publisher"]
