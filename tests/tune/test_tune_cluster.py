"""A search while executors are killed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_tune_tuner import rows, tuner
from tuning import Killer

from sparkdl import tune


@pytest.mark.slow
@pytest.mark.cluster
def test_the_same_winner_while_executors_are_killed(cluster: Any) -> None:
    options: dict[str, Any] = {"metric": "val/loss", "mode": None, "trials": 12, "max_epochs": 9}
    options |= {"scheduler": tune.ASHA(), "search": "random"}
    with rows(cluster, 2) as data:
        calm = tuner(**options).fit(data, 0.25)
        killer = Killer(4, 3.0)
        killer.start()
        wild = tuner(**options).fit(data, 0.25)
        killer.over.set()
        killer.join()
    assert killer.done
    assert wild.best == calm.best
    for mine, theirs in zip(calm.module().parameters(), wild.module().parameters(), strict=True):
        assert torch.equal(mine, theirs)
    np.testing.assert_equal([t.values for t in wild.trials], [t.values for t in calm.trials])
