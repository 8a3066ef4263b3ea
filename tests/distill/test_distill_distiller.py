"""The Distiller: against plain torch, with all kinds of teachers but services, and its errors."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.models import mlp
from support.serving import classifier, save, table_classifier
from torch import Tensor, nn
from torch.nn import functional as nnf
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset
from sparkdl.access import Access
from sparkdl.data import dataset
from sparkdl.data.store.build import PartitionStore, delete
from sparkdl.distill import (
    KD,
    Distiller,
    FeatureMatching,
    LogitMatching,
    PatientKD,
    Service,
    SoftLabels,
    Teacher,
)
from sparkdl.distill.client import Client
from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.ml import TorchModel
from sparkdl.train import Checkpoint, Hook, MaxEpoch, MaxIteration
from sparkdl.wire.frame import Array

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 6)).astype(np.float32)
WIDE = RANDOM.normal(size=(40, 9)).astype(np.float32)
Y = RANDOM.integers(0, 4, 40)
KEEPS: list[Any] = ["all", 2, None]


def net(width: int = 8, inputs: int = 6, classes: int = 4, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, classes))


def teacher(seed: int = 5, **options: Any) -> nn.Sequential:
    module = net(16, seed=seed, **options)
    return nn.Sequential(module[0], nn.Dropout(0.5), *module[1:])  # which evaluation leaves out


def rows(spark: Any, label: Any = Y, partitions: int = 1, **options: Any) -> Dataset:
    return Dataset.from_numpy(X, label, spark=spark, num_partitions=partitions, **options)


def distiller(teachers: Any, student: nn.Module | None = None, **options: Any) -> Distiller:
    defaults: dict[str, Any] = {"optimizer": partial(torch.optim.SGD, lr=0.5), "batch_size": 40}
    defaults |= {"end_when": MaxIteration(4), "progress": False, "shuffle": False}
    return Distiller(net() if student is None else student, teachers, **defaults | options)


def plain(
    soft: torch.Tensor, steps: int = 4, label: Any = Y, loss: KD | None = None, lr: float = 0.5
) -> nn.Module:
    """Train by plain torch."""
    loss, student = loss or KD(), net()
    optimizer = torch.optim.SGD(student.parameters(), lr=lr)
    hard = None if label is None else torch.from_numpy(label)
    for _ in range(steps):
        optimizer.zero_grad()
        t = loss.temperature
        output = student(torch.from_numpy(X))
        log_q, log_p = nnf.log_softmax(output / t, 1), nnf.log_softmax(soft / t, 1)
        value = loss.alpha * t * t * (log_p.exp() * (log_p - log_q)).sum(1).mean()
        if hard is not None:
            value = value + (1 - loss.alpha) * nnf.cross_entropy(output, hard)
        value.backward()
        optimizer.step()
    return student


def answers(module: nn.Module, inputs: Array = X) -> torch.Tensor:
    with torch.no_grad():
        return copy.deepcopy(module).eval()(torch.from_numpy(inputs))


def topped(logits: torch.Tensor, k: int, t: float) -> torch.Tensor:
    """Keep the largest k logits; the others get one that keeps their share at the temperature."""
    found = logits.clone()
    for row in found:
        order = row.argsort(descending=True)
        row[order[k:]] = t * torch.log(torch.exp(row[order[k:]] / t).mean())
    return found


def close(found: nn.Module, expected: nn.Module, atol: float = 1e-6) -> None:
    assert found.state_dict().keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, atol=atol, rtol=0)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


# -- against plain torch ------------------------------------------------------------------------


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_student_learns_as_by_plain_torch(spark: Any, keep: Any, partitions: int) -> None:
    big = teacher()
    soft = answers(big)
    if keep == 2:
        soft = topped(soft, 2, 4.0)
    if keep is not None:
        soft = soft.bfloat16().float()
    distill = distiller(big, keep=keep)
    with rows(spark, partitions=partitions) as data:
        result = distill.fit(data)
    # The logit of the others is rounded to bfloat16 once more than topped() rounds it.
    close(result.module, plain(soft), 1e-6 if keep != 2 else 2e-5)
    assert distill.result is result
    assert result.history[-1]["extras"].keys() == {"soft", "hard", "answered", "teacher_seconds"}
    assert distill.cost is not None
    assert 0 < distill.cost.teachers < distill.cost.total
    assert distill.cost.rows == (160 if keep is None else 40)


def test_teachers_alone_without_labels(spark: Any) -> None:
    big = teacher()
    with rows(spark, None) as data:
        result = distiller(big, keep=None, loss=KD(2.0, 1.0)).fit(data)
    close(result.module, plain(answers(big), label=None, loss=KD(2.0, 1.0)))
    with rows(spark, None) as data:
        result = distiller(big, loss=KD(2.0, 1.0)).fit(data)
    close(result.module, plain(answers(big).bfloat16().float(), label=None, loss=KD(2.0, 1.0)))


@pytest.mark.parametrize("keep", KEEPS)
def test_what_all_logits_of_a_row_share_says_nothing(spark: Any, keep: Any) -> None:
    """Of logits of about 1,000 bfloat16 tells every eighth apart: all classes would be as likely."""
    big = teacher()
    soft = answers(big)
    with torch.no_grad():
        big[-1].bias.add_(1000.0)  # type: ignore[operator, union-attr]
    with rows(spark) as data:
        result = distiller(big, keep=keep).fit(data)
    close(result.module, plain(topped(soft, 2, 4.0) if keep == 2 else soft), 1e-3)


@pytest.mark.parametrize("keep", ["all", None])
def test_amounts_far_from_zero_are_learned_as_they_are(spark: Any, keep: Any) -> None:
    """Of years bfloat16 tells every eighth or sixteenth apart."""
    big, far = teacher(), torch.tensor([2000.0, -1000.0, 0.0, 1e6])
    with torch.no_grad():
        big[-1].bias.add_(far)  # type: ignore[operator, union-attr]
    student = net()
    with torch.no_grad():
        student[-1].bias.add_(far)  # type: ignore[operator, union-attr]
    soft, expected = answers(big), copy.deepcopy(student)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        nnf.mse_loss(expected(torch.from_numpy(X)), soft).backward()
        optimizer.step()
    with rows(spark, None) as data:
        result = distiller(big, student, keep=keep, loss=LogitMatching(1.0)).fit(data)
    torch.testing.assert_close(answers(result.module), answers(expected), atol=1e-3, rtol=2e-7)
    assert (soft.bfloat16().float() - soft).abs().max() > 1


@pytest.mark.parametrize("keep", ["all", None])
def test_teachers_of_other_kinds_columns_and_weights(spark: Any, keep: Any) -> None:
    """One with the student's inputs, one with its own columns, and one that is a column of probabilities."""
    one, other = teacher(), net(12, inputs=9, seed=7)
    third = RANDOM.normal(size=(40, 4)).astype(np.float32)
    label = {"label": Y, "wide": WIDE, "third": nnf.softmax(torch.from_numpy(third), 1).numpy()}
    teachers = [
        one,
        Teacher(other, inputs="wide", weight=2.0),
        SoftLabels("third", weight=0.5, outputs="probabilities"),
    ]
    with Dataset.from_numpy(X, label, spark=spark, num_partitions=2) as data:
        result = distiller(teachers, keep=keep).fit(data)
    logits = [answers(one), answers(other, WIDE), torch.from_numpy(third)]
    if keep is not None:
        logits[:2] = [soft.bfloat16().float() for soft in logits[:2]]
    # The divergence from the mean of distributions has the gradient of the mean of divergences.
    mean = sum(w * nnf.softmax(z / 4, 1) for w, z in zip((1, 2, 0.5), logits, strict=True)) / 3.5
    close(result.module, plain(4 * mean.log()))  # type: ignore[union-attr]


def test_a_projector_is_trained_and_left_out(spark: Any) -> None:
    big, student = teacher(), net()
    hidden = FeatureMatching({"1": "2"}, weight=0.3)
    with rows(spark) as data:
        distill = distiller(big, student, keep=None, hidden=hidden, averaging=None)
        result = distill.fit(data)
    assert result.module.state_dict().keys() == student.state_dict().keys()
    assert "distill_projector_0_0" not in student._parameters
    # By plain torch, from the same first projector.
    from sparkdl.distill.hidden import project

    project(student, 0, 0, (8, 16), 0)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.5)
    x, frozen = torch.from_numpy(X), copy.deepcopy(big).eval()
    with torch.no_grad():
        wanted = frozen[:3](x)
    for _ in range(4):
        optimizer.zero_grad()
        states = student[:2](x)
        value = KD()(student(x), (answers(big), torch.from_numpy(Y))).mean()
        projected = states @ student.distill_projector_0_0.T
        (value + 0.3 * ((projected - wanted) ** 2).mean()).backward()
        optimizer.step()
    expected = net()
    state = {k: v for k, v in student.state_dict().items() if not k.startswith("distill")}
    expected.load_state_dict(state)
    close(result.module, expected)
    assert "hidden0" in result.history[-1]["extras"]


def test_patient_kd_of_a_transformer(spark: Any) -> None:
    class Encoder(nn.Module):
        def __init__(self, layers: int, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.embed = nn.Embedding(20, 8)
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            self.head = nn.Linear(8, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.layers(self.embed(ids))[:, 0])
            return found

    ids = RANDOM.integers(0, 20, (40, 5))
    hidden = PatientKD({"layers.layers.0": "layers.layers.1"}, weight=5.0)
    with Dataset.from_numpy(ids, Y, spark=spark, num_partitions=2) as data:
        distill = distiller(Encoder(2, 1), Encoder(1, 2), keep=None, hidden=hidden, end_when=MaxIteration(30))
        history = distill.fit(data).history
    first, last = (history[n]["extras"]["hidden0"] for n in (0, -1))
    assert last < 0.5 * first


# -- what stays the same, and what travels ------------------------------------------------------


@pytest.mark.parametrize("keep", KEEPS)
def test_the_same_bits_again_and_after_a_loss(spark: Any, keep: Any) -> None:
    """A partition that is lost is labelled again."""

    class Lose(Hook):
        def on_iteration_end(self, run: Any) -> None:
            if run.state.iteration == 2:
                tokens = run.data.store().tokens
                import shutil

                for token in run.data.store().partitions:
                    shutil.rmtree(token.folder)
                run.data.access.forget(tokens, 0)

    found = []
    for hooks in ([], [], [Lose()]):
        with rows(spark, partitions=2) as data:
            options: dict[str, Any] = {"keep": keep, "hooks": hooks, "iterations_per_job": 1}
            found.append(distiller(teacher(), shuffle=True, batch_size=16, **options).fit(data).module)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize("keep", ["all", None])
def test_a_run_goes_on_from_a_checkpoint_that_has_no_teacher(spark: Any, keep: Any, tmp_path: Path) -> None:
    big = nn.Sequential(net(2000), nn.Identity())
    options: dict[str, Any] = {"keep": keep, "batch_size": 16, "hidden": ()}
    with rows(spark, partitions=2) as data:
        whole = distiller(big, end_when=MaxEpoch(2), **options).fit(data)
        hooks = [Checkpoint(tmp_path)]
        distiller(big, end_when=MaxEpoch(1), hooks=hooks, **options).fit(data)
        size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
        assert size < 20_000  # the teacher has 90,000
        again = distiller(big, end_when=MaxEpoch(2), hooks=[Checkpoint(tmp_path)], **options).fit(
            data, resume=True
        )
    assert same(whole.module, again.module)


def test_soft_labels_are_computed_once_and_take_two_bytes(spark: Any, tmp_path: Path) -> None:
    class Look(Hook):
        def on_iteration_end(self, run: Any) -> None:
            columns.update(
                {key: (dtype, shape) for key, dtype, shape in run.data.store().partitions[0].columns}
            )

    columns: dict[str, Any] = {}
    with rows(spark, {"label": Y, "wide": WIDE}, partitions=2) as data:
        big = Teacher(Counts(tmp_path / "asked"), inputs="wide")
        distiller(big, keep=2, end_when=MaxEpoch(3), batch_size=10, hooks=[Look()]).fit(data)
    asked = [int(line) for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == [5, 20, 20]  # on the driver, and in the tasks
    assert columns == {
        "features": ("float32", (6,)),
        "label_label": ("int64", ()),
        "label_soft0": ("int16", (3,)),
        "label_soft0_classes": ("int16", (2,)),
    }  # and not what the teacher alone reads


class Counts(nn.Module):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.inner, self.path = net(12, 9), path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with self.path.open("a") as file:
            file.write(f"{len(x)}\n")
        found: torch.Tensor = self.inner(x)
        return found


def test_a_saved_model_teaches(spark: Any, tmp_path: Path) -> None:
    save(classifier(), tmp_path / "model")
    x = RANDOM.normal(size=(40, 64)).astype(np.float32)
    label = RANDOM.integers(0, 10, 40)
    students = []
    for given in (str(tmp_path / "model"), mlp(seed=0)):
        with Dataset.from_numpy(x, label, spark=spark, num_partitions=1) as data:
            students.append(distiller(given, net(8, 64, 10)).fit(data).module)
    assert same(*students)
    save(table_classifier(), tmp_path / "table")
    with (
        Dataset.from_numpy(x, label, spark=spark) as data,
        pytest.raises(ConfigError, match="encodes a table's columns"),
    ):
        distiller(str(tmp_path / "table"), net(8, 64, 10)).fit(data)


class Difference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 4)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.out(first - second)


@pytest.mark.parametrize("served", [False, True])
def test_a_saved_model_that_was_fitted_on_the_columns_in_another_order_is_refused(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: bool
) -> None:
    x = np.zeros((2, 3), np.float32)
    model = TorchModel.from_module(Difference(), example=(x, x), featuresCols=["b", "a"])
    save(model, tmp_path / "model")
    told = {"model": "TorchModel", "inputs": {"b": "", "a": ""}, "outputs": {"rawPrediction": ""}}
    monkeypatch.setattr(Client, "model", lambda self: told)
    of = Service(["nobody:1"]) if served else Teacher(str(tmp_path / "model"), trust=[Difference])
    df = pd.DataFrame({"a": list(RANDOM.normal(size=(8, 3))), "b": list(RANDOM.normal(size=(8, 3))), "y": 0})
    with pytest.raises(
        ConfigError, match=r"fitted on the columns \['b', 'a'\], in this order, and gets .*'a'"
    ):
        distiller(of, Difference()).fit(df, features=["a", "b"], label="y")


def test_rows_are_deleted_by_the_job_that_ends_the_fit(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    df = pd.DataFrame({"x": list(X), "y": Y})
    jobs: list[str] = []

    def seen(access: Access, store: PartitionStore) -> None:
        jobs.extend([store.name] if store.owns_files else [])
        delete(access, store)

    monkeypatch.setattr(dataset, "delete", seen)
    for keep in KEEPS:
        distiller(teacher(), keep=keep).fit(df, df[:10], features="x", label="y")
    with rows(spark) as data:
        distiller(teacher(), keep=None).fit(data)
        assert not jobs
    assert len(jobs) == 1


SOME = np.where(np.arange(40) % 4 < 3, -1, Y)
WEIGHTS = np.resize([0.0, 0.5, 7.0], 40)


def of_labelled(module: nn.Module, weight: Any) -> float:
    """Return the mean loss over rows of ``SOME`` that have a label."""
    there = torch.from_numpy(np.flatnonzero(SOME >= 0))
    found = nnf.cross_entropy(answers(module)[there], torch.from_numpy(Y)[there], reduction="none")
    counts = torch.ones(40) if weight is None else torch.from_numpy(weight)
    return float((found * counts[there]).sum() / counts[there].sum())


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["alike", "weights"])
@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_validation_is_the_mean_over_rows_that_have_a_label(spark: Any, kind: Any, weight: Any) -> None:
    with (
        rows(spark, weight=weight) as data,
        rows(spark, SOME.astype(kind), 3, weight=weight) as some,
        rows(spark, 0 * Y - 1, weight=weight) as none,
    ):
        distill = distiller(teacher(), loss=KD(), validation_batch_size=6)
        result = distill.fit(data, {"val": some, "none": none})
    assert result.scores["val/loss"] == pytest.approx(of_labelled(result.module, weight), rel=1e-6)
    assert np.isnan(result.scores["none/loss"])


@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["alike", "weights"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_the_parts_of_the_loss_are_means_by_weight(spark: Any, weight: Any, partitions: int) -> None:
    """That of the labels over the rows that have one, some micro-batches none."""
    with rows(spark, SOME, partitions, weight=weight) as data:
        distill = distiller(teacher(), keep=None, micro_batch_size=2, end_when=MaxIteration(1))
        found = distill.fit(data).history[0]["extras"]
    assert found["hard"] == pytest.approx(of_labelled(net(), weight), rel=1e-5)
    soft = KD(alpha=1.0)(answers(net()), answers(teacher())).double().numpy()
    assert found["soft"] == pytest.approx(np.average(soft, weights=weight), rel=1e-5)
    assert found["answered"] == pytest.approx(1)


def test_padding_has_no_part_in_hidden_layers(spark: Any) -> None:
    class Masked(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 4)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            there = attention_mask[..., None]
            found: Tensor = self.head((self.embed(input_ids) * there).sum(1) / there.sum(1))
            return found

    lengths = np.arange(40) % 5 + 1
    ids = np.random.default_rng(1).integers(0, 20, (40, 5))
    mask = (np.arange(5) < lengths[:, None]).astype(np.int64)
    pair, inputs = {"embed": "embed"}, {"input_ids": ids, "attention_mask": mask}
    hidden = [FeatureMatching(pair), PatientKD(pair, token=None)]
    with Dataset.from_numpy(inputs, Y, spark=spark, num_partitions=3) as data:
        distill = distiller(Masked(2), Masked(1), keep=None, hidden=hidden, end_when=MaxIteration(1))
        found = distill.fit(data).history[0]["extras"]
    with torch.no_grad():
        alone = [torch.from_numpy(row[:n]) for row, n in zip(ids, lengths, strict=True)]
        states = [(Masked(2).embed(row), Masked(1).embed(row)) for row in alone]
        plain = [nnf.mse_loss(*both) for both in states]
        patient = [2 * (1 - nnf.cosine_similarity(*both)).mean() for both in states]
    assert found["hidden0"] == pytest.approx(float(torch.stack(plain).mean()), rel=1e-5)
    assert found["hidden1"] == pytest.approx(float(torch.stack(patient).mean()), rel=1e-5)


def test_validation_measures_the_label_alone(spark: Any) -> None:
    with rows(spark, partitions=2) as data, rows(spark) as held_out:
        metrics = {"accuracy": MulticlassAccuracy(num_classes=4, average="micro")}
        result = distiller(teacher(), metrics=metrics).fit(data, held_out)
    output = answers(result.module)
    expected = float((output.argmax(1) == torch.from_numpy(Y)).float().mean())
    assert result.scores["val/accuracy"] == pytest.approx(expected)
    loss = float(nnf.cross_entropy(output, torch.from_numpy(Y)))
    assert result.scores["val/loss"] == pytest.approx(loss, rel=1e-5)


def test_rows_of_different_lengths_and_a_transform(spark: Any) -> None:
    """Teachers see what the student sees: what ``transform`` and ``collate`` have made of the rows."""
    from sparkdl.data import Pad

    class Mean(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.embed, self.head = nn.Embedding(30, 6), nn.Linear(6, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.embed(ids).mean(1))
            return found

    lengths = RANDOM.integers(1, 6, 20)
    texts = [RANDOM.integers(1, 20, n) for n in lengths]
    pairs = list(zip(texts, map(int, Y[:20]), strict=True))
    students = []
    for keep in ("all", None):
        with Dataset.from_torch(
            pairs, spark=spark, num_partitions=2, collate=Pad(lengths=False), transform=_next
        ) as data:
            students.append(distiller(Mean(1), Mean(2), keep=keep).fit(data).module)
    close(*students, atol=2e-3)  # type: ignore[misc]  # bfloat16


def _next(ids: torch.Tensor) -> torch.Tensor:
    return ids + 5


def test_an_error_carries_the_student_without_projectors(spark: Any) -> None:
    class Stop(Hook):
        def on_iteration_end(self, run: Any) -> None:
            raise RuntimeError("enough")

    hidden = FeatureMatching({"1": "2"})
    with rows(spark) as data, pytest.raises(RuntimeError) as raised:
        distiller(teacher(), keep=None, hidden=hidden, hooks=[Stop()]).fit(data)
    found: Any = raised.value
    assert found.result.module.state_dict().keys() == net().state_dict().keys()


# -- errors, before any long work ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"teacher": net(classes=5)}, r"gives \[5\] values per row, the student \[4\]"),
        ({"keep": 5}, "at most as many as there are classes"),
        ({"keep": 0}, "keep=0: expected"),
        ({"keep": True}, "keep=True: expected"),
        ({"keep": 2, "teacher": SoftLabels("label")}, "keep=2: all teachers are SoftLabels"),
        ({"keep": 2, "loss": LogitMatching()}, "LogitMatching needs all outputs"),
        ({"loss": nn.CrossEntropyLoss()}, "a loss of sparkdl.distill"),
        ({"teacher": 3}, "teacher 3: expected a torch.nn.Module"),
        ({"teacher": []}, r"teacher=\[\]"),
        ({"teacher": "/no/such/model"}, "/no/such/model"),
        ({"hidden": PatientKD({"1": "2"})}, "say keep=None"),
        ({"hidden": PatientKD({"1": "9"}), "keep": None}, "has no layer '9'"),
        ({"hidden": PatientKD({"none": "2"}), "keep": None}, "the student has no layer 'none'"),
        ({"hidden": PatientKD({"1": "2"}, teacher=1), "keep": None}, "from 0 to 0"),
        ({"hidden": PatientKD({"1": "2"}), "keep": None, "compile": True}, "leave compile= out"),
        ({"optimizer": None}, "optimizer=None"),
        ({"teacher": Teacher(net(inputs=9), inputs="wide")}, "reads 'wide', which is no entry"),
        ({"teacher": net(inputs=7)}, "float32"),
    ],
)
def test_what_does_not_fit_is_said_first(spark: Any, options: dict[str, Any], says: str) -> None:
    given = {"teacher": net(), **options}
    with (
        rows(spark) as data,
        pytest.raises((ConfigError, DataError, ModelError), match=says),
    ):
        distiller(given.pop("teacher"), **given).fit(data)


def test_options_of_teachers() -> None:
    with pytest.raises(ConfigError, match="weight=0"):
        Teacher(net(), weight=0)
    with pytest.raises(ConfigError, match="outputs='odds'"):
        SoftLabels("x", outputs="odds")  # type: ignore[arg-type]
    assert (
        repr(distiller([net(), SoftLabels("p")]))
        == "Distiller(Sequential of Sequential, SoftLabels('p'), KD)"
    )
