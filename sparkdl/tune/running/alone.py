"""A check whether a Trainer can work in one task, by itself."""

from __future__ import annotations

from sparkdl.exceptions import ConfigError
from sparkdl.nn.embedding import embedding_variables
from sparkdl.train.trainer import Trainer


def check_alone(trainer: Trainer) -> None:
    """Check that a Trainer can work in one task."""
    config, keyed = trainer.config, embedding_variables(trainer.module)
    needs = {
        "exchange='driver'": config.exchange == "driver",
        f"num_shards={config.num_shards}": config.num_shards is not None,
        "drop_stragglers": config.drop_stragglers is not None,
        "elastic": config.elastic is not None,
        f"the embedding variable {next(iter(keyed), '')!r}": bool(keyed),
    }
    for option, needed in needs.items():
        if needed:
            raise ConfigError(
                f"per_trial='task': {option} is about several tasks; leave it out or take per_trial='cluster'"
            )
