"""The perceptron over a table's columns."""

import pytest
import torch
from support.contract import check_model, size

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.tabular import Tabular, embedding_width

KNOTS = ((-1.0, 0.0, 2.0), ())


def test_contract():
    categories, numbers = torch.tensor([[0, 3], [2, 1]]), torch.randn(2, 2)
    check_model(lambda: Tabular((3, 40), 2, 3, KNOTS, hidden=(16,)), categories, numbers)
    check_model(lambda: Tabular((3, 40), hidden=(8,), dropout=0.0), categories)
    check_model(lambda: Tabular(numbers=2, hidden=()), numbers)


def test_size():
    width = 2 + embedding_width(40) + 2 + 2  # two values of one hot, a vector, two numbers, two pieces
    tables = 40 * embedding_width(40)
    assert size(Tabular((3, 40), 2, 3, KNOTS, hidden=(16,))) == tables + (width + 1) * 16 + 17 * 3


def test_embeddings_grow_slowly():
    assert [embedding_width(n) for n in (9, 40, 500, 10_000)] == [5, 13, 50, 50]


def inside(model, *columns):
    """Return what enters the first layer."""
    seen = []
    model.layers.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.eval()(*columns)
    return seen[0].tolist()


def test_numbers_enter_as_they_are_and_in_pieces():
    model = Tabular(numbers=2, knots=KNOTS, limit=5.0)
    found = inside(model, torch.tensor([[-3.0, 9.0], [-0.5, 1.0], [1.0, 0.0], [9.0, 0.0]]))
    assert found == [[-3, 5, 0, 0], [-0.5, 1, 0.5, 0], [1, 0, 1, 0.5], [5, 0, 1, 1]]


def test_unseen_values_enter_as_nothing():
    model = Tabular((3, 20), one_hot=8)
    rows = inside(model, torch.tensor([[0, 0], [1, 5], [2, 0]], dtype=torch.int32))
    assert not any(rows[0])
    assert rows[1][-2:] == [1, 0]
    assert rows[2][-2:] == [0, 1]
    assert any(rows[1][:-2])


@pytest.mark.parametrize("row", [[3, 5], [-1, 5], [2, 20], [2, -1]])
def test_a_number_out_of_range_is_none_of_an_unseen_value(row):
    with pytest.raises(IndexError):
        Tabular((3, 20), one_hot=8)(torch.tensor([[2, 5], row]))


def test_a_number_out_of_range_is_named():
    with pytest.raises(IndexError, match=r"categories\[1, 2\] is 4; expected a number from 0 to 3"):
        Tabular((3, 20, 4), one_hot=8)(torch.tensor([[2, 5, 3], [2, 5, 4]]))


def test_outputs_start_at_their_scale():
    torch.manual_seed(0)
    model = Tabular(numbers=1, outputs=2)
    model.scale_outputs(torch.tensor([100.0, 0.0]), torch.tensor([1.0, 0.0]))
    found = model.eval()(torch.zeros(1, 1))[0]
    assert abs(found[0] - 100) < 2
    assert model.output_scale.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "expected at least one column"),
        ({"cardinalities": [0]}, r"cardinalities=\(0,\)"),
        ({"numbers": 1, "outputs": 0}, "outputs=0"),
        ({"numbers": 1, "activation": "x"}, "activation='x'"),
        ({"numbers": 1, "dropout": 1}, "dropout=1"),
        ({"numbers": 1, "limit": 0}, "limit=0"),
        ({"numbers": 1, "knots": [[], []]}, "2 lists of knots for 1 numbers"),
        ({"numbers": 1, "knots": [[0.0, 0.0]]}, r"knots\[0\]=.*increasing"),
    ],
)
def test_arguments_are_checked(arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        Tabular(**arguments)


def test_inputs_are_checked():
    with pytest.raises(ModelError, match="got 1 inputs; expected 2, as cardinalities and numbers say"):
        Tabular([3], 2)(torch.zeros(1, 1))
    with pytest.raises(ModelError, match=r"categories has shape \(1, 2\); expected \(rows, 1\)"):
        Tabular([3])(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ModelError, match="numbers has shape"):
        Tabular(numbers=3)(torch.zeros(1, 2))
