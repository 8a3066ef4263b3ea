"""``sparkdl.train.plan``: a rehearsal, and the cluster plan that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sparkdl.data.columns import ColumnLike, Columns
from sparkdl.data.dataset import Dataset
from sparkdl.exceptions import ConfigError, integer_option
from sparkdl.train.hooks.of_run import none_of_every_run
from sparkdl.train.planning.cluster_plan import ClusterPlan, make_plan
from sparkdl.train.planning.costs import Kind
from sparkdl.train.planning.model import StepModel
from sparkdl.train.planning.rehearsal import Stage

if TYPE_CHECKING:
    from sparkdl.train.trainer import Trainer


def plan(
    trainer: Trainer,
    data: Any,
    *,
    rows: int | None = None,
    executors: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    price: float = 0.0,
    gigabits: float = 10.0,
    seconds: float = 4.0,
    compare: bool = True,
    features: Columns | None = None,
    label: Columns | None = None,
    weight: ColumnLike | None = None,
    tell: Callable[[str], None] = lambda doing: None,
) -> ClusterPlan:
    """Train for some steps on a sample, and forecast time, memory and cost of larger clusters.

    The Trainer does not change, and its hooks are not called. Forecasts are best from two executors or more:
    with one, the network is assumed.

    Args:
        trainer: a :class:`Trainer`.
        data: the rows: a :class:`~sparkdl.Dataset`, of which only a sample is built, or a DataFrame.
        rows: of an epoch; by default those of the Dataset, whose store is built to count them.
        executors: numbers to forecast for.
        price: of a core hour, in any currency.
        gigabits: per second that a machine sends, and receives, where it was not measured.
        seconds: of each of some eight short fits, about.
        compare: whether to measure all other exchanges and transports, too.
        features: columns of a DataFrame, as in :meth:`Trainer.fit`.
        label: likewise.
        weight: likewise.
        tell: is told what is being measured.

    Raises:
        ConfigError: if an argument cannot work, or an option does not fit the data.
        TaskError: if a task keeps failing.
    """
    if rows is not None:
        integer_option("plan", "rows", rows, 1)
    if not executors or min(executors) < 1:
        raise ConfigError(f"plan(executors={executors!r:.100}): expected numbers of at least 1")
    if not price >= 0 or not gigabits > 0 or not seconds > 0:
        raise ConfigError(
            f"plan(price={price!r}, gigabits={gigabits!r}, seconds={seconds!r}): expected a price of at "
            "least 0, and positive gigabits and seconds"
        )
    with trainer._given(data, features, label, weight) as dataset:
        return plan_of(
            trainer, dataset, rows, executors, price, gigabits, seconds=seconds, compare=compare, tell=tell
        )


def plan_of(
    trainer: Trainer,
    data: Dataset,
    rows: int | None,
    executors: Sequence[int],
    price: float,
    gigabits: float,
    *,
    seconds: float,
    compare: bool = True,
    tell: Callable[[str], None],
) -> ClusterPlan:
    """Return the plan of a fit of a Dataset; see :func:`plan`."""
    trainer._recipe.check_trains()
    config, wanted = trainer.config, trainer._recipe.wanted()
    kinds: dict[int, Kind] = {}
    for count in executors:
        try:
            kind = wanted.choose(data.access, count)
        except ConfigError:  # shards would be too large for so few
            continue
        kinds[count] = kind if kind != "auto" else "replicated"
    with none_of_every_run():
        found = Stage(trainer, data, wanted, seconds, tell).rehearse(compare, set(kinds.values()))
    if rows is None:
        tell("counting the rows")
        rows = len(data)
    return make_plan(
        StepModel(found, network=gigabits / 8 * 1e9),
        kinds,
        rows=rows,
        batch=config.batch_size,
        steps_per_batch=config.rows_per_iteration(1, 0),
        price=price,
    )
