"""The losses of distillation against their formulas, written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.distill import KD, FeatureMatching, LogitMatching, PatientKD
from sparkdl.distill.losses import main_output
from sparkdl.exceptions import ConfigError, ModelError

RANDOM = np.random.default_rng(0)
OUTPUT, TEACHER = RANDOM.normal(size=(2, 5, 4)).astype(np.float32) * 3
LABEL = np.array([0, 3, 1, 2, 2])


def softmax(z: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(z - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def kd(output: np.ndarray, teacher: np.ndarray, t: float) -> np.ndarray:
    p, q = softmax(teacher / t), softmax(output / t)
    return t * t * (p * (np.log(p) - np.log(q))).sum(-1)


def ce(output: np.ndarray, label: np.ndarray) -> np.ndarray:
    return -np.log(softmax(output))[np.arange(len(label)), label]


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


@pytest.mark.parametrize(("temperature", "alpha"), [(1.0, 0.5), (4.0, 0.9), (2.5, 1.0), (3.0, 0.0)])
def test_kd_is_hintons_formula(temperature: float, alpha: float) -> None:
    output, teacher, label = tensors(OUTPUT, TEACHER, LABEL)
    found = KD(temperature, alpha)(output, (teacher, label))
    np.testing.assert_array_equal(found, KD(temperature, alpha)(output, (teacher, label.double())))
    expected = alpha * kd(OUTPUT, TEACHER, temperature) + (1 - alpha) * ce(OUTPUT, LABEL)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_gradient_of_kd_is_the_difference_of_softened_probabilities() -> None:
    output, teacher = tensors(OUTPUT, TEACHER)
    output.requires_grad_(True)
    KD(4.0, 1.0)(output, teacher).sum().backward()
    expected = 4 * (softmax(OUTPUT / 4) - softmax(TEACHER / 4))  # T² times 1/T
    np.testing.assert_allclose(output.grad, expected, rtol=1e-4, atol=1e-6)


def test_kd_of_sequences_is_the_mean_over_positions() -> None:
    output, teacher = RANDOM.normal(size=(2, 3, 7, 4)).astype(np.float32)
    found = KD(2.0, 1.0)(*tensors(output, teacher))
    np.testing.assert_allclose(found, kd(output, teacher, 2.0).mean(1), rtol=1e-5)


def test_logit_matching_is_the_squared_difference() -> None:
    output, teacher = tensors(OUTPUT, TEACHER)
    label = torch.zeros(5, 4)
    found = LogitMatching(0.3)(output, {"soft": teacher, "label": label})
    expected = 0.3 * ((OUTPUT - TEACHER) ** 2).mean(1) + 0.7 * (OUTPUT**2).mean(1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_rows_without_label_or_without_answer_have_the_other_part() -> None:
    output, teacher, label = tensors(OUTPUT, TEACHER.copy(), LABEL.copy())
    label[0] = -1
    teacher[1, 2] = torch.nan
    label[4], teacher[4] = -1, torch.nan
    output.requires_grad_(True)
    found, _, answered = KD(4.0, 0.9).combined(output, [(2.0, teacher)], label)
    soft, hard = kd(OUTPUT, TEACHER, 4.0), ce(OUTPUT, LABEL)
    expected = np.array([0.9 * soft[0], hard[1], *(0.9 * soft + 0.1 * hard)[2:4], 0.0])
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-5)
    assert answered.tolist() == [1, 0, 1, 1, 0]
    found.sum().backward()
    assert output.grad.isfinite().all()
    assert not output.grad[4].any()


def test_amounts_below_0_are_labels_and_negative_integers_are_none() -> None:
    output, teacher = tensors(OUTPUT[:, 0], TEACHER[:, 0])
    amounts = np.array([-3, 2, -1, 0, 4])
    soft, squared = 0.5 * (OUTPUT[:, 0] - TEACHER[:, 0]) ** 2, 0.5 * (OUTPUT[:, 0] - amounts) ** 2
    loss = LogitMatching(0.5)
    np.testing.assert_allclose(
        loss(output, (teacher, torch.from_numpy(amounts).float())), soft + squared, rtol=1e-5
    )
    np.testing.assert_allclose(
        loss(output, (teacher, torch.from_numpy(amounts))), soft + squared * (amounts >= 0), rtol=1e-5
    )


def test_alpha_one_uses_labels_only_where_no_teacher_answers() -> None:
    output, teacher, label = tensors(OUTPUT, TEACHER.copy(), LABEL)
    teacher[1] = torch.nan
    found = KD(1.0, 1.0)(output, (teacher, label))
    expected = kd(OUTPUT, TEACHER, 1.0)
    expected[1] = ce(OUTPUT, LABEL)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_several_teachers_count_by_their_weights_among_those_that_answered() -> None:
    other = RANDOM.normal(size=(5, 4)).astype(np.float32)
    output, first, second, label = tensors(OUTPUT, TEACHER, other.copy(), LABEL)
    second[3:] = torch.nan
    found, soft, answered = KD(2.0, 0.5).combined(output, [(1.0, first), (3.0, second)], label)
    a, b = kd(OUTPUT, TEACHER, 2.0), kd(OUTPUT, other, 2.0)
    expected = np.where(np.arange(5) < 3, (a + 3 * b) / 4, a)
    np.testing.assert_allclose(soft, expected, rtol=1e-5)
    np.testing.assert_allclose(found, 0.5 * expected + 0.5 * ce(OUTPUT, LABEL), rtol=1e-5)
    assert answered.tolist() == [1, 1, 1, 0.25, 0.25]


def test_nobody_answers() -> None:
    """The width of an answer is not known where no server has ever answered."""
    output, label = tensors(OUTPUT, LABEL)
    found, _, answered = KD().combined(output, [(1.0, torch.full((5, 1), torch.nan))], label)
    np.testing.assert_allclose(found, ce(OUTPUT, LABEL), rtol=1e-5)
    assert not answered.any()


def test_feature_matching_projects_to_the_teachers_width() -> None:
    student, teacher = RANDOM.normal(size=(5, 6)).astype(np.float32), RANDOM.normal(size=(5, 3))
    matrix = RANDOM.normal(size=(3, 6)).astype(np.float32)
    loss = FeatureMatching({"a": "b"}, weight=2.0)
    found = loss(*tensors(student, teacher.astype(np.float32)), tensors(matrix))
    np.testing.assert_allclose(found, 2 * ((student @ matrix.T - teacher) ** 2).mean(1), rtol=1e-4)


def test_feature_matching_projects_the_channels_of_images() -> None:
    student = RANDOM.normal(size=(2, 3, 4, 5)).astype(np.float32)
    teacher = RANDOM.normal(size=(2, 6, 4, 5)).astype(np.float32)
    matrix = RANDOM.normal(size=(6, 3)).astype(np.float32)
    found = FeatureMatching({"a": "b"})(*tensors(student, teacher), tensors(matrix))
    projected = np.einsum("rchw,kc->rkhw", student, matrix)
    np.testing.assert_allclose(found, ((projected - teacher) ** 2).mean((1, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("token", [0, 2, None])
def test_patient_kd_is_the_distance_of_normalised_states(token: int | None) -> None:
    pairs = [RANDOM.normal(size=(2, 3, 4, 8)).astype(np.float32) for _ in range(2)]
    loss = PatientKD({"a": "x", "b": "y"}, weight=10.0, token=token)
    found = loss([torch.from_numpy(s) for s, _ in pairs], [torch.from_numpy(t) for _, t in pairs])

    def distance(s: np.ndarray, t: np.ndarray) -> np.ndarray:
        s, t = (v / np.linalg.norm(v, axis=-1, keepdims=True) for v in (s, t))
        squared = ((s - t) ** 2).sum(-1)
        return squared.mean(1) if token is None else squared[:, token]

    expected = 10 * np.mean([distance(s, t) for s, t in pairs], axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("loss", [FeatureMatching({"a": "b"}), PatientKD({"a": "b"}, token=None)])
def test_hidden_states_of_padding_do_not_count(loss: FeatureMatching) -> None:
    """Whatever they are; each row has the loss that it has alone."""
    student, teacher = RANDOM.normal(size=(2, 4, 5, 8))
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
    student[0, 3], teacher[1, 0] = np.nan, np.inf
    (ours, theirs), matrix = tensors(student, teacher), torch.eye(8, dtype=torch.float64)
    ours.requires_grad_()
    found = loss(ours, theirs, [matrix], mask)
    for row, own in enumerate(mask.bool()):
        alone = loss(ours[row, own][None], theirs[row, own][None]) if own.any() else torch.zeros(1)
        torch.testing.assert_close(found[row], alone[0], check_dtype=False)
    assert torch.equal(loss(ours, theirs, (), mask)[2], loss(ours, theirs)[2])
    found.sum().backward()
    assert not ours.grad[mask == 0].any()  # type: ignore[index]
    images = torch.randn(4, 5, 3, 3)
    assert torch.equal(loss(images, images + 1, (), mask), loss(images, images + 1))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: KD(temperature=0), "temperature=0"),
        (lambda: KD(alpha=1.5), "alpha=1.5"),
        (lambda: LogitMatching(alpha="all"), "alpha='all'"),
        (lambda: FeatureMatching({}), "layers={}"),
        (lambda: PatientKD({"a": "b"}, weight=-1), "weight=-1"),
    ],
)
def test_options_that_cannot_work(make: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()  # type: ignore[operator]


def test_shapes_that_do_not_fit() -> None:
    output, label = tensors(OUTPUT, LABEL)
    with pytest.raises(ModelError, match="the same classes in the same order"):
        KD()(output, (torch.zeros(5, 3), label))
    with pytest.raises(ModelError, match="LogitMatching compares other outputs"):
        KD()(output[:, :1], (torch.zeros(5, 1), label))
    with pytest.raises(ModelError, match=r"or \(soft, label\)"):
        KD()(output, (output, label, label))
    with pytest.raises(ModelError, match="one loss per row"):
        KD(label_loss=nn.CrossEntropyLoss())(output, (output, label))
    with pytest.raises(ModelError, match="expected one shape, apart from the width"):
        FeatureMatching({"a": "b"})(torch.zeros(2, 3), torch.zeros(2, 4))


def test_the_output_that_is_compared() -> None:
    logits = torch.zeros(2, 3)
    assert main_output((logits, None)) is logits
    assert main_output({"hidden": logits + 1, "logits": logits}) is logits
    with pytest.raises(ModelError, match="a dict with 'logits'"):
        main_output([])


@pytest.mark.parametrize("wrong", [0.7, -0.5, float("nan")])
def test_kd_refuses_labels_that_are_no_numbers_of_classes(wrong: float) -> None:
    output, teacher, label = tensors(OUTPUT, TEACHER, LABEL.astype(np.float64))
    label[1:3] = torch.tensor([-1.0, wrong])
    with pytest.raises(ModelError, match=f"KD got the label {wrong:g}; expected the number of a class"):
        KD()(output, (teacher, label))
