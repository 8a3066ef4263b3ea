"""Searches without tasks: schedulers, order of decisions, budget, resume."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest

from sparkdl import seeding
from sparkdl.exceptions import ConfigError
from sparkdl.tune import (
    ASHA,
    FIFO,
    PBT,
    Hyperband,
    MedianStopping,
    Pruned,
    SuccessiveHalving,
    choice,
    lograndint,
    quniform,
    randint,
    uniform,
)
from sparkdl.tune.running.advance import Advanced
from sparkdl.tune.running.journal import Journal, Rung
from sparkdl.tune.running.search import Search
from sparkdl.tune.sampling import Asker, sampler_of
from sparkdl.tune.schedulers.halving import rungs_of
from sparkdl.tune.schedulers.moves import Go, Outline, Scheduler
from sparkdl.tune.space import Space
from sparkdl.tune.trial import Trial
from sparkdl.wire import frame

SPACE = Space({"x": uniform(0.0, 1.0), "kind": choice(["a", "b"]), "fixed": 7})


def value_at(params: Any, epoch: int) -> float:
    """A learning curve that ends at 1 for x = 0.5, and crosses others on its way."""
    return (1 - (params["x"] - 0.5) ** 2) * (1 - math.exp(-epoch / (1 + 4 * params["x"])))


class Curves:
    """Runs rungs of a made-up curve; the state is the epochs and params so far."""

    def __init__(
        self,
        fail_at: int = -1,
        diverge: Callable[[Rung], bool] = lambda _: False,
        fails: Callable[[Rung], bool] = lambda _: False,
    ) -> None:
        self.rungs: list[Rung] = []
        self._fails = fails
        self._fail_at, self._diverge = fail_at, diverge

    def start(self, rung: Rung, state: Callable[[], bytes] | None) -> Callable[[], Advanced]:
        if rung.number == self._fail_at:
            raise RuntimeError("the driver died")
        self.rungs.append(rung)
        if self._fails(rung):
            if rung.trial % 2:
                raise ValueError(f"at once\nin {rung.trial}")
            return _late
        before = frame.unpack(state()).meta["epochs"] if state is not None else 0
        assert before == rung.done
        if self._diverge(rung):
            return lambda: Advanced([], "diverged", None, 1.0)
        reports = [
            {"epoch": float(epoch), "score": value_at(rung.params, epoch)}
            for epoch in range(rung.done + 1, rung.until + 1)
        ]
        left = frame.pack({"kind": "state", "epochs": rung.until})
        return lambda: Advanced(reports, "", left, 1.0)


def _late() -> Advanced:
    raise ValueError("late")


def search(
    scheduler: Scheduler,
    folder: Path | None = None,
    *,
    runner: Curves | None = None,
    trials: int = 9,
    max_epochs: int = 9,
    concurrent: int = 3,
    resume: bool = False,
    sampler: Any = "random",
    **options: Any,
) -> Search:
    scheduler.begin(Outline(trials, max_epochs, SPACE, 0))
    asker = Asker(
        SPACE, sampler_of(sampler, SPACE, 0), options.pop("storage", None), "made up", resume=resume
    )
    with Journal(folder, {"trials": trials}, resume) as journal:
        made = Search(
            asker=asker,
            scheduler=scheduler,
            runner=runner or Curves(),
            journal=journal,
            metric="score",
            sign=1,
            count=trials,
            max_epochs=max_epochs,
            budget=options.pop("budget", None),
            concurrent=concurrent,
            stop=options.pop("stop", lambda: ""),
            passes=options.pop("passes", lambda _: False),
            on_rung=options.pop("on_rung", lambda trial, ended: None),
        )
        assert made.run() == made.ended
    return made


def epochs(made: Search) -> list[int]:
    return sorted((trial.epochs for trial in made.trials), reverse=True)


def test_rungs_grow_by_a_factor_and_end_with_all_epochs() -> None:
    assert rungs_of(1, 9, 3) == [1, 3, 9]
    assert rungs_of(2, 9, 3) == [2, 6, 9]
    assert rungs_of(9, 9, 3) == [9]
    assert rungs_of(20, 9, 3) == [9]


def test_successive_halving_takes_a_third_of_each_rung_further() -> None:
    made = search(SuccessiveHalving())
    assert epochs(made) == [9, 3, 3, 1, 1, 1, 1, 1, 1]
    assert made.spent == 9 + 2 * 3 + 6
    first = sorted(made.trials, key=lambda trial: -trial.at(1))
    assert {trial.number for trial in first[:3]} == {t.number for t in made.trials if t.epochs > 1}
    assert [trial.status for trial in made.trials if trial.epochs == 9] == ["finished"]
    assert {trial.status for trial in made.trials if trial.epochs < 9} == {"stopped"}


@pytest.mark.parametrize("concurrent", [1, 2, 8])
@pytest.mark.parametrize("scheduler", [SuccessiveHalving, Hyperband])
def test_a_rung_waits_for_all_of_its_trials_however_many_run_at_a_time(
    scheduler: type[Scheduler], concurrent: int
) -> None:
    made = search(scheduler(), trials=27, max_epochs=27, concurrent=concurrent)
    left = list(made.trials)
    for epoch, many in ((1, 9), (3, 3), (9, 1)):  # by hand
        left = sorted(left, key=lambda trial: -value_at(trial.params, epoch))[:many]
        assert {trial.number for trial in left} == {t.number for t in made.trials if t.epochs > epoch}
    assert made.spent == 27 + 9 * 2 + 3 * 6 + 18


@pytest.mark.parametrize("first", [[{"a": 2, "b": "x"}], [{"b": "y"}, {"a": 3}, {"a": 3, "b": "y"}]])
def test_a_grid_has_each_point_once_whatever_is_to_be_first(first: list[dict[str, Any]]) -> None:
    space = Space({"a": choice([1, 2, 3]), "b": choice(["x", "y"]), "step": quniform(0.1, 0.3, 0.1)})
    asker = Asker(space, sampler_of("grid", space, 0), None, "points", first=first)
    trials: list[Trial] = []
    for number in range(asker.count or 0):
        params = asker.ask(trials)
        trials.append(Trial(number=number, params=params, first_params=params, status="finished"))
    assert len({tuple(trial.params.items()) for trial in trials}) == len(trials) == 3 * 2 * 3
    for given, trial in zip(first, trials, strict=False):
        assert given.items() <= trial.params.items()
    twice = [{"a": 1, "b": "x", "step": 0.3}, {"a": 1, "b": "x", "step": 0.1 + 2 * 0.1}]
    with pytest.raises(ConfigError, match="no point of the grid, or one that is given twice"):
        Asker(space, sampler_of("grid", space, 0), None, "points", first=twice)


def test_epochs_that_were_not_validated_do_not_count_for_the_median() -> None:
    class Every2(Curves):
        def start(self, rung: Rung, state: Callable[[], bytes] | None) -> Callable[[], Advanced]:
            result = super().start(rung, state)()
            found = [r if r["epoch"] % 2 == 0 else {"epoch": r["epoch"]} for r in result.reports]
            return lambda: Advanced(found, "", result.state, 1.0)

    made = search(MedianStopping(2, min_trials=2, rung=2), runner=Every2(), max_epochs=8, trials=12)
    assert all(list(trial.values) == list(range(2, trial.epochs + 1, 2)) for trial in made.trials)
    best = max(made.trials, key=lambda trial: value_at(trial.params, 8))
    assert best.status == "finished"
    assert any(trial.status == "stopped" for trial in made.trials)


@pytest.mark.parametrize("trials", [2, 7, 20])
@pytest.mark.parametrize("scheduler", [ASHA, SuccessiveHalving, Hyperband])
def test_some_trial_gets_all_epochs_however_many_trials_there_are(
    scheduler: type[Scheduler], trials: int
) -> None:
    made = search(scheduler(), trials=trials)
    assert len(made.trials) == trials
    assert max(epochs(made)) == 9
    assert not made._running


def test_asha_promotes_before_a_rung_is_complete() -> None:
    runner = Curves()
    made = search(ASHA(), runner=runner, concurrent=1)
    further = next(n for n, rung in enumerate(runner.rungs) if rung.done)
    assert len({rung.trial for rung in runner.rungs[:further]}) < len(made.trials)
    assert made.spent < 9 * 9 / 2


def test_hyperband_begins_with_many_short_trials_and_ends_with_few_long_ones() -> None:
    scheduler = Hyperband()
    assert scheduler.trials(9) == 9 + 5 + 3
    made = search(scheduler, trials=17)
    firsts = [scheduler.first(number) for number in range(17)]
    assert firsts == [1] * 9 + [3] * 5 + [9] * 3
    assert [t.epochs for t in made.trials[14:]] == [9, 9, 9]
    scheduler.begin(Outline(20, 9, SPACE, 0))  # another round begins
    assert [scheduler.first(number) for number in range(17, 20)] == [1, 1, 1]


def test_median_stopping_ends_trials_that_lag() -> None:
    made = search(MedianStopping(grace_period=2, min_trials=2), trials=12)
    stopped = [trial for trial in made.trials if trial.status == "stopped"]
    assert stopped
    assert max(epochs(made)) == 9
    best = max(made.trials, key=lambda trial: value_at(trial.params, 9))
    assert best.status == "finished"


@pytest.mark.parametrize(("best", "expected"), [(0.49, "stop"), (0.5, Go(0, 3)), (0.9, Go(0, 3))])
def test_the_median_is_that_of_what_others_had_on_average_by_the_same_epoch(
    best: float, expected: Any
) -> None:
    scheduler = MedianStopping()
    scheduler.begin(Outline(20, 9, SPACE, 0))
    assert [scheduler.first(number) for number in range(3)] == [1, 1, 1]
    values: list[dict[int, float]] = [
        {1: best, 2: 0.1},  # its best value counts
        {1: 0.2, 2: 0.4, 3: 5.0, 4: 5.0},  # what came later does not
        {1: 0.1, 2: 0.9},
        {1: 0.5, 2: 0.7},
        {1: 9.0},  # is not there yet
    ]
    trials: list[Any] = [SimpleNamespace(number=n, epochs=max(v), values=v) for n, v in enumerate(values)]
    assert scheduler.reported(trials[0], trials) == expected
    # Three others are the fewest to compare with.
    assert scheduler.reported(trials[0], trials[:3]) == Go(0, 3)
    assert scheduler.reported(trials[0], trials[:4]) == expected


def test_a_trial_whose_epoch_was_not_validated_goes_on() -> None:
    scheduler = MedianStopping(min_trials=1)
    scheduler.begin(Outline(20, 9, SPACE, 0))
    values: list[dict[int, float]] = [{}, {1: 0.1}, {1: 0.9, 2: 0.9}]
    trials: list[Any] = [SimpleNamespace(number=n, epochs=2 - n % 2, values=v) for n, v in enumerate(values)]
    assert scheduler.reported(trials[0], trials) == Go(0, 3)
    assert scheduler.reported(trials[1], trials) == "stop"


def test_median_stopping_goes_on_by_rungs_until_the_last_epoch() -> None:
    scheduler = MedianStopping(grace_period=20, rung=4)
    scheduler.begin(Outline(20, 9, SPACE, 0))
    assert scheduler.first(0) == 9
    for done, until in ((1, 5), (5, 9), (7, 9)):
        trial: Any = SimpleNamespace(number=2, epochs=done, values={done: 0.0})
        assert scheduler.reported(trial, [trial]) == Go(2, until)


def test_a_pruner_of_optuna_decides() -> None:
    made = search(Pruned(optuna.pruners.PercentilePruner(30.0, n_startup_trials=2)), trials=12)
    assert {trial.status for trial in made.trials} == {"stopped", "finished"}
    with pytest.raises(ConfigError, match=r"pruner='median'.*expected one of Optuna"):
        Pruned("median")  # type: ignore[arg-type]


@pytest.mark.parametrize("bounds", [{"upper": 1.0}, {"lower": 0.1}])
def test_a_pruner_sees_the_values_of_the_metric_as_it_is(bounds: dict[str, float]) -> None:
    """Beside Optuna: losses were turned, so a bound above stopped no trial, and one below all of them."""
    losses = [0.5, 5.0, 0.05]
    scheduler = Pruned(optuna.pruners.ThresholdPruner(**bounds))
    scheduler.begin(Outline(3, 2, SPACE, 0, sign=-1))
    stopped = []
    for number, loss in enumerate(losses):
        trial: Any = SimpleNamespace(number=number, epochs=1, last=-loss, is_over=False)
        stopped.append(scheduler.reported(trial, []) == "stop")
    study = optuna.create_study(direction="minimize", pruner=optuna.pruners.ThresholdPruner(**bounds))
    expected = []
    for loss in losses:
        asked = study.ask()
        asked.report(loss, 1)
        expected.append(asked.should_prune())
    assert stopped == expected
    assert any(stopped)
    assert not all(stopped)


def test_a_population_draws_from_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With that of tasks its draws would be those of the dropout masks of trials with the search's seed."""
    streams, derive = set(), seeding.derive
    monkeypatch.setattr(seeding, "derive", lambda stream, *more: streams.add(stream) or derive(stream, *more))
    assert any(trial.copies for trial in search(PBT(interval=3), trials=8).trials)
    assert streams == {seeding.POPULATION}
    assert len({seeding.POPULATION, seeding.ORDER, seeding.TASK, seeding.SHARES}) == 4


def test_population_copies_weights_and_params_of_the_best() -> None:
    runner = Curves()
    made = search(PBT(interval=3, perturb=["x"], resample=0.0), runner=runner, trials=8, concurrent=3)
    assert epochs(made) == [9] * 8
    copied = [(trial, copy) for trial in made.trials for copy in trial.copies]
    assert {copy["epoch"] for _, copy in copied} == {3, 6}
    for trial, copy in copied:
        donor = made.trials[copy["trial"]]
        rung = next(r for r in runner.rungs if r.trial == trial.number and r.done == copy["epoch"])
        of_donor = next(r for r in runner.rungs if r.trial == donor.number and r.until == copy["epoch"])
        assert rung.state == of_donor.number
        assert rung.params["x"] in [pytest.approx(min(1.0, of_donor.params["x"] * f)) for f in (0.8, 1.25)]
    with pytest.raises(ConfigError, match=r"PBT\(perturb=\['y'"):
        search(PBT(perturb=["y"]))


def explored(kind: Any, value: Any, **options: Any) -> set[Any]:
    """Return what 200 perturbations make of a value."""
    scheduler = PBT(perturb=["x"], **options)
    scheduler.begin(Outline(2, 9, Space({"x": kind}), 0))
    random = np.random.default_rng(0)
    return {scheduler._explored({"x": value}, random)["x"] for _ in range(200)}


def test_what_has_steps_moves_by_one_at_least() -> None:
    assert explored(randint(1, 8), 1, resample=0.0) == {1, 2}  # 0.8 would leave the bounds
    assert explored(randint(0, 8), 0, resample=0.0) == {0, 1}
    assert explored(randint(-8, 8), -1, resample=0.0) == {-2, 0}
    assert explored(randint(1, 8), 2, resample=0.0) == {1, 3}
    assert explored(randint(2, 32, step=10), 12, resample=0.0) == {2, 22}
    assert explored(lograndint(1, 100), 40, resample=0.0) == {32, 50}
    assert explored(quniform(0.0, 1.0, 0.25), 0.5, resample=0.0) == {0.25, 0.75}
    assert explored(randint(1, 8), 1, resample=0.0, factors=(1.0,)) == {1}


def test_the_ends_are_as_probable_as_other_steps() -> None:
    scheduler = PBT(perturb=["x"], resample=1.0)
    scheduler.begin(Outline(2, 9, Space({"x": randint(1, 4)}), 0))
    random = np.random.default_rng(0)
    drawn = [scheduler._explored({"x": 1}, random)["x"] for _ in range(4000)]
    assert [drawn.count(n) for n in (1, 2, 3, 4)] == pytest.approx([1000] * 4, rel=0.1)


def test_a_trial_that_diverges_is_the_worst() -> None:
    made = search(SuccessiveHalving(), runner=Curves(diverge=lambda rung: rung.trial == 2))
    assert made.trials[2].status == "diverged"
    assert made.trials[2].last == -math.inf
    assert max(epochs(made)) == 9
    revived = search(PBT(interval=3), runner=Curves(diverge=lambda r: r.trial == 2 and r.done == 0), trials=4)
    assert revived.trials[2].copies[0]["epoch"] == 3
    assert revived.trials[2].status == "finished"
    hopeless = search(ASHA(), runner=Curves(diverge=lambda _: True))
    assert hopeless.best is None


SAMPLERS = ["tpe", "random", "grid", "qmc", "cmaes", "gp", optuna.samplers.NSGAIISampler(seed=1)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_choose_the_same_trials_again(
    sampler: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if sampler == "cmaes":
        pytest.importorskip("cmaes")
    if sampler == "grid":
        space = Space({"x": [0.1, 0.5, 0.9], "kind": choice(["a", "b"])})
        monkeypatch.setitem(globals(), "SPACE", space)
        assert Asker(space, sampler_of("grid", space, 0), None, "n").count == 6
    runs = [[t.params for t in search(ASHA(), sampler=sampler, trials=6).trials] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len({json.dumps(params) for params in runs[0]}) == 6
    assert "sampled independently" not in capfd.readouterr().err


def test_tpe_learns_from_trials_that_wait() -> None:
    made = search(ASHA(), sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=5), trials=24)
    early, late = made.trials[:8], made.trials[-8:]
    far = [sum(abs(t.params["x"] - 0.3) for t in trials) for trials in (early, late)]
    assert far[1] < far[0]


def test_a_search_that_died_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole = search(ASHA(), tmp_path / "whole", trials=12)
    for at in (0, 3, 11):
        folder = tmp_path / str(at)
        with pytest.raises(RuntimeError, match="the driver died"):
            search(ASHA(), folder, trials=12, runner=Curves(fail_at=at))
        with open(folder / "search.jsonl", "a") as file:
            file.write('{"rung": 4')  # cut off
        runner = Curves()
        again = search(ASHA(), folder, trials=12, runner=runner, resume=True)
        assert [t.params for t in again.trials] == [t.params for t in whole.trials]
        assert again.best == whole.best
        assert len(runner.rungs) < len(whole.trials) + 12
        lines = (folder / "search.jsonl").read_text().splitlines()
        assert len(lines) == whole.rungs + 1  # no rung has run twice
    states = {path.name for path in (tmp_path / "whole").glob("state-*")}
    assert f"state-{whole.best.rung:06d}.bin" in states


def test_states_of_trials_that_have_ended_are_deleted_but_the_best(tmp_path: Path) -> None:
    held: list[int] = []

    def look(trial: Trial, ended: bool) -> None:
        held.append(len(list(tmp_path.glob("state-*.bin"))))

    made = search(FIFO(), tmp_path, trials=20, on_rung=look)
    assert made.best is not None
    left = [path.name for path in tmp_path.glob("state-*.bin")]
    assert left == [f"state-{made.best.rung:06d}.bin"]
    assert len(held) == 20
    assert max(held) == 2  # the best one's, and that of the rung that has ended
    runner = Curves()
    again = search(FIFO(), tmp_path, runner=runner, trials=20, resume=True)
    assert (again.best, runner.rungs) == (made.best, [])
    assert [path.name for path in tmp_path.glob("state-*.bin")] == left


class CopiesTheFirst(FIFO):
    """A trial that waits goes on as a copy of the first one, which has ended."""

    def first(self, number: int) -> int:
        return 9 if number == 0 else 1

    def reported(self, trial: Trial, trials: Any) -> Any:
        return Go(trial.number, 9, donor=0) if trial.number == 2 else "pause"


def test_a_trial_that_has_ended_cannot_be_copied() -> None:
    with pytest.raises(ConfigError, match=r"CopiesTheFirst.*copies trial 0, which is finished"):
        search(CopiesTheFirst(), trials=4, concurrent=1)


def test_a_folder_is_refused_that_has_another_search(tmp_path: Path) -> None:
    search(FIFO(), tmp_path, trials=2)
    with pytest.raises(ConfigError, match=r"a search has been kept there.*resume=True"):
        search(FIFO(), tmp_path, trials=2)
    with pytest.raises(ConfigError, match=r"resume: trials is 3 now and was 2"):
        search(FIFO(), tmp_path, trials=3, resume=True)
    with pytest.raises(ConfigError, match=r"rung 0 was .* decides otherwise"):
        search(FIFO(), tmp_path, trials=2, max_epochs=5, resume=True)
    (tmp_path / "search.jsonl").write_text("[]\n")
    with pytest.raises(ConfigError, match=r"search.jsonl cannot be read"):
        search(FIFO(), tmp_path, trials=2, resume=True)


@pytest.mark.parametrize(
    "line",
    [
        '{"rung": 0}',
        '{"rung": 0, "reports": 5, "ending": "", "seconds": 1}',
        '{"rung": 0, "reports": [{"score": "x"}], "ending": "", "seconds": 1}',
        '{"rung": 0, "reports": [{"score": 1' + 400 * "0" + '}], "ending": "", "seconds": 1}',
        '{"rung": 0, "reports": [], "ending": "perhaps", "seconds": 1}',
        '{"rung": 0, "reports": [], "ending": "", "seconds": null}',
        '{"rung": "0", "reports": [], "ending": "", "seconds": 1}',
        200_000 * "[",
    ],
)
def test_a_line_that_is_damaged_is_an_error_that_names_the_file(tmp_path: Path, line: str) -> None:
    search(FIFO(), tmp_path, trials=2)
    file = tmp_path / "search.jsonl"
    header, *others = file.read_text().splitlines()
    file.write_text("\n".join([header, line, *others[1:], ""]))
    with pytest.raises(ConfigError, match=f"{tmp_path.name}.*search.jsonl cannot be read"):
        search(FIFO(), tmp_path, trials=2, resume=True)
    file.write_text(header.replace('"sparkdl-tune": 2', '"sparkdl-tune": 3') + "\n")
    with pytest.raises(ConfigError, match="search.jsonl cannot be read.*format 3, expected 2"):
        search(FIFO(), tmp_path, trials=2, resume=True)


def test_a_state_that_is_damaged_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="the driver died"):
        search(ASHA(), tmp_path, trials=12, runner=Curves(fail_at=11))
    for path in tmp_path.glob("state-*.bin"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match=r"state-\d+\.bin is damaged: it is not what was written"):
        search(ASHA(), tmp_path, trials=12, resume=True)


def test_a_search_whose_first_line_was_cut_off_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "search.jsonl").write_text('{"sparkdl-tune": 1, "sett')
    with pytest.raises(ConfigError, match=r"a search has been kept there"):
        search(FIFO(), tmp_path, trials=2)
    assert search(FIFO(), tmp_path, trials=2, resume=True).rungs == 2
    assert search(FIFO(), tmp_path, trials=2, resume=True).rungs == 2


def test_budget_and_stop_end_a_search_with_what_it_has() -> None:
    made = search(FIFO(), budget=20, trials=9, concurrent=2)
    assert (made.ended, made.spent, len(made.trials)) == ("budget", 18, 2)
    asked: list[str] = []

    def stop() -> str:
        asked.append("")
        return "interrupt" if len(asked) > 2 else ""

    made = search(FIFO(), stop=stop, concurrent=2)
    assert made.ended == "interrupt"
    assert made.best is not None
    assert {trial.status for trial in made.trials} == {"finished"}


def test_trials_are_shown_in_a_storage(tmp_path: Path) -> None:
    storage = optuna.storages.InMemoryStorage()
    folder = tmp_path / "kept"
    with pytest.raises(RuntimeError):
        search(ASHA(), folder, storage=storage, runner=Curves(fail_at=6))
    made = search(ASHA(), folder, storage=storage, resume=True)
    study = optuna.load_study(study_name="made up", storage=storage)
    assert len(study.trials) == len(made.trials)
    assert study.best_value == pytest.approx(max(trial.last for trial in made.trials))
    by_number = {t.user_attrs["sparkdl.trial"]: t for t in study.trials}
    for trial in made.trials:
        assert by_number[trial.number].params["x"] == trial.params["x"]
        assert by_number[trial.number].intermediate_values == pytest.approx(trial.values)
    with pytest.raises(ConfigError, match=r"the study 'made up' has 9 trials already"):
        search(ASHA(), storage=storage)


@pytest.mark.parametrize("scheduler", [MedianStopping(), Hyperband(), PBT(2)])
def test_a_storage_has_the_end_of_trials_that_were_stopped_and_go_on(
    scheduler: Scheduler, tmp_path: Path
) -> None:
    def seen(storage: Any) -> dict[int, Any]:
        trials = optuna.load_study(study_name="made up", storage=storage).trials
        return {t.user_attrs["sparkdl.trial"]: (t.state, t.value, t.intermediate_values) for t in trials}

    straight, stopped = (optuna.storages.InMemoryStorage() for _ in range(2))
    whole, done = search(scheduler, storage=straight), list[int]()
    for most in (3, 9):
        made = search(
            scheduler,
            tmp_path,
            storage=stopped,
            resume=most > 3,
            stop=lambda most=most: "timeout" if len(done) >= most else "",
            on_rung=lambda trial, ended: done.append(trial.number),
        )
        assert made.ended == "timeout"
        done.clear()
    made = search(scheduler, tmp_path, storage=stopped, resume=True, budget=whole.spent)
    assert made.best == whole.best
    assert seen(stopped) == seen(straight)


def test_a_storage_has_a_loss_as_the_metric_has_it() -> None:
    """Not turned round, as schedulers and samplers see it."""
    storage = optuna.storages.InMemoryStorage()
    asker = Asker(SPACE, sampler_of("random", SPACE, 0), storage, "losses", sign=-1)
    trial = Trial(number=0, params=(params := asker.ask([])), first_params=params)
    trial.values = {1: -0.5, 2: -0.25}
    asker.show(trial, "loss", ended=True)
    study = optuna.load_study(study_name="losses", storage=storage)
    assert study.direction.name == "MINIMIZE"
    assert study.trials[0].intermediate_values == {1: 0.5, 2: 0.25}
    assert study.best_value == 0.25


def test_samplers_learn_the_value_that_a_search_has_of_a_trial() -> None:
    """The best at the end of a rung: later ones may be worse, and the search goes back to that one."""

    class Overfits(Curves):
        def start(self, rung: Rung, state: Callable[[], bytes] | None) -> Callable[[], Advanced]:
            found = super().start(rung, state)()
            reports = [{**r, "score": 1.0 + rung.trial - abs(r["epoch"] - 2)} for r in found.reports]
            return lambda: Advanced(reports, "", found.state, 1.0)

    told: list[list[float]] = []

    class Asks(optuna.samplers.RandomSampler):
        def sample_relative(self, study: Any, trial: Any, space: Any) -> dict[str, Any]:
            done = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
            told.append([found.value for found in done])
            return super().sample_relative(study, trial, space)

    storage = optuna.storages.InMemoryStorage()
    options: dict[str, Any] = {"runner": Overfits(), "trials": 3, "max_epochs": 4, "concurrent": 1}
    made = search(FIFO(rung=1), sampler=Asks(), storage=storage, **options)
    assert made.best is not None
    assert (made.best.trial, made.best.epoch, made.best.value) == (2, 2, 3.0)
    assert told == [[], [1.0], [1.0, 2.0]]
    study = optuna.load_study(study_name="made up", storage=storage)
    assert study.best_value == 3.0
    assert [trial.value for trial in study.trials] == [1.0, 2.0, 3.0]
    assert [trial.last for trial in made.trials] == [-1.0, 0.0, 1.0]


def test_params_to_try_first_have_the_types_of_those_that_are_drawn() -> None:
    space = Space({"n": randint(1, 16), "x": uniform(0, 1), "c": choice([16, 32])})
    first = space.named({"n": 8.0, "x": 1, "c": 16.0})
    assert {name: type(value) for name, value in first.items()} == {"n": int, "x": float, "c": int}
    asked = Asker(space, sampler_of("random", space, 0), None, "n", first=[first]).ask([])
    assert asked == {"n": 8, "x": 1.0, "c": 16}
    assert type(asked["n"]) is int
    for wrong in ({"n": 8.5}, {"x": "0.5"}):
        with pytest.raises(ConfigError, match="is not in"):
            space.named(wrong)


def test_the_space_is_checked() -> None:
    assert Space({"x": [1, 2], "y": 3}).constants == {"y": 3}
    objects = Space({"hidden": [[16], [64, 64]]})
    assert objects.grid() == {"hidden": ["[16]", "[64, 64]"]}
    assert objects.chosen({"hidden": "[64, 64]", "y": 1}) == {"hidden": [64, 64], "y": 1}
    assert Space({"x": quniform(0.1, 0.3, 0.1)}).grid() == {"x": [0.1, 0.2, 0.3]}
    with pytest.raises(ConfigError, match="opt.lr is chosen within 'opt', where no search looks"):
        Space({"opt": {"lr": uniform(0, 1)}, "x": [1, 2]})
    with pytest.raises(ConfigError, match=r"search='grid': 'x' is FloatDistribution"):
        Space({"x": uniform(0, 1)}).grid()
    for wrong, message in (
        ({"x": 3}, "nothing is left to choose"),
        ([("x", 1)], "expected a dict"),
        ({3: [1]}, "is no string"),
        ({"x": []}, "at least one value"),
    ):
        with pytest.raises(ConfigError, match=message):
            Space(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"choice: <object"):
        choice([object()])
    with pytest.raises(ConfigError, match=r"search='tp'.*expected one of 'tpe'"):
        sampler_of("tp", SPACE, 0)


def test_results_may_arrive_in_any_order() -> None:
    """The search asks for results in the order of its own clock; when they are ready does not matter."""
    waited: list[int] = []

    class Late(Curves):
        def start(self, rung: Rung, state: Callable[[], bytes] | None) -> Callable[[], Advanced]:
            ready = super().start(rung, state)

            def wait() -> Advanced:
                waited.append(rung.number)
                return ready()

            return wait

    made = search(ASHA(), runner=Late(), concurrent=4, trials=20)
    assert sorted(waited) == list(range(made.rungs))
    assert waited != sorted(waited)  # a long rung does not hold up shorter ones that began later


def test_trials_sort_by_their_last_value() -> None:
    trial = Trial(number=0, params={}, first_params={})
    assert trial.last == -math.inf
    trial.values = {1: 3.0, 2: random.Random(0).random()}
    assert trial.last == trial.values[2]
    assert trial.at(5) == -math.inf


def _is_value_error(error: Exception) -> bool:
    return isinstance(error, ValueError)


def test_a_failure_ends_the_search_and_names_the_trial_and_its_params() -> None:
    for trial, text in ((4, "late"), (5, "at once")):
        runner = Curves(fails=lambda rung, trial=trial: rung.trial == trial)  # type: ignore[misc]
        with pytest.raises(ValueError, match=text) as caught:
            search(FIFO(), runner=runner)
        (note,) = caught.value.__notes__
        assert note.startswith(f"Trial {trial}, epochs 1 to 9, with {{")
        assert "'x': " in note


@pytest.mark.parametrize(
    "scheduler",
    [
        *(FIFO(), FIFO(1), ASHA(), SuccessiveHalving(), Hyperband(), MedianStopping(), PBT(interval=3)),
        Pruned(optuna.pruners.MedianPruner()),
    ],
    ids=lambda scheduler: scheduler.describe(),
)
def test_failed_trials_are_passed_over(scheduler: Scheduler) -> None:
    """Every third trial fails, at its beginning or later; the others end as they would."""
    shown = []
    made = search(
        scheduler,
        runner=Curves(fails=lambda rung: rung.trial % 3 == 1 and rung.done >= rung.trial % 2),
        trials=12,
        passes=_is_value_error,
        on_rung=lambda trial, ended: shown.append((trial.number, trial.status, ended)),
    )
    failed = [trial for trial in made.trials if trial.status == "failed"]
    assert {4, 10} <= {trial.number for trial in failed}
    assert all(trial.number % 3 == 1 for trial in failed)
    assert {trial.error.split(":")[0] for trial in failed} == {"ValueError"}
    assert all((trial.number, "failed", True) in shown for trial in failed)
    assert len(made.trials) == 12
    assert made.ended == "done"
    assert made.completed == made.rungs
    assert made.best is not None
    assert made.trials[made.best.trial].status != "failed" or made.best.epoch < 9
    assert max(made.trials, key=lambda trial: trial.last).status == "finished"


def test_failed_trials_count_for_the_budget_and_teach_samplers_nothing(tmp_path: Path) -> None:
    made = search(
        FIFO(),
        runner=Curves(fails=lambda rung: rung.trial < 3),
        budget=45,
        passes=_is_value_error,
        storage=f"sqlite:///{tmp_path / 'study.db'}",
        sampler="tpe",
    )
    assert [trial.status for trial in made.trials] == ["failed"] * 3 + ["finished"] * 2
    assert (made.ended, made.spent) == ("budget", 45)
    study = optuna.load_study(study_name="made up", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * 3 + ["COMPLETE"] * 2
    assert study.trials[0].user_attrs["sparkdl.error"] == "ValueError: late"


def test_a_search_that_is_resumed_does_not_run_failed_trials_again(tmp_path: Path) -> None:
    fails: Any = lambda rung: rung.trial in (1, 2)  # noqa: E731
    whole = search(ASHA(), runner=Curves(fails=fails), passes=_is_value_error)
    with pytest.raises(RuntimeError, match="the driver died"):
        search(ASHA(), tmp_path, runner=Curves(7, fails=fails), passes=_is_value_error)
    runner = Curves()
    again = search(ASHA(), tmp_path, runner=runner, passes=_is_value_error, resume=True)
    assert again.trials == whole.trials
    assert again.best == whole.best
    assert {rung.trial for rung in runner.rungs}.isdisjoint({1, 2})


def test_a_damaged_folder_is_no_failed_trial() -> None:
    class Damaged(Curves):
        def start(self, rung: Rung, state: Any) -> Any:
            raise ConfigError("state-000001.bin is damaged", code="config-resume")

    with pytest.raises(ConfigError, match="damaged"):
        search(FIFO(), runner=Damaged(), passes=lambda _: True)


def test_a_trial_shows_its_params_and_what_became_of_it() -> None:
    params = {"lr": 1 / 3, "act": "tanh"}
    trial = Trial(number=3, params=params, first_params=params, status="finished", epochs=2)
    trial.reports = [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 0.52434, "val/accuracy": 0.5}]
    assert repr(trial) == "Trial(3: lr=0.3333, act='tanh'; finished, 2 epochs; loss 0.5243, val/accuracy 0.5)"
    trial.status, trial.error = "failed", "ValueError: 64 units are too many"
    assert repr(trial).endswith("; failed, 2 epochs; ValueError: 64 units are too many)")
    assert repr(Trial(number=0, params={}, first_params={})) == "Trial(0; running, 0 epochs)"
