import pytest
import torch

from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.models.arguments import check_sizes
from sparkdl.nn.models.parts import FieldEmbedding, check_numbers, perceptron


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", (3, 0), [2.5]])
def test_sizes_are_checked(value):
    with pytest.raises(ConfigError, match=r"Model: width=.*: expected (an integer|integers) of at least 1"):
        check_sizes("Model", width=value)


def test_sizes_may_start_elsewhere():
    check_sizes("Model", least=0, width=0, hidden=())
    with pytest.raises(ConfigError, match="Model: width=1: expected an integer of at least 2"):
        check_sizes("Model", least=2, width=1)


def test_perceptron_of_one_width_is_the_identity():
    x = torch.randn(2, 5)
    assert perceptron([5])(x) is x
    assert perceptron([5, 4, 3], dropout=0.1)(x).shape == (2, 3)
    assert (perceptron([5, 4])(x) >= 0).all()


def test_each_field_has_its_own_vectors():
    embed = FieldEmbedding((3, 2), 4)
    vectors = embed(torch.tensor([[2, 0], [0, 1]]))
    assert vectors.shape == (2, 2, 4)
    assert torch.equal(vectors[0, 0], embed.tables[0].weight[2])
    assert torch.equal(vectors[1, 1], embed.tables[1].weight[1])


def test_a_value_beyond_its_own_field_is_an_error():
    with pytest.raises(IndexError):
        FieldEmbedding((3, 2), 4)(torch.tensor([[0, 2]]))


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (3, 2, 1)])
def test_fields_are_counted(shape):
    with pytest.raises(ModelError, match=r"categories has shape .* expected \(rows, 2\)"):
        FieldEmbedding((3, 2), 4)(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize(
    ("numbers", "expected", "message"),
    [
        (None, 2, r"numbers has shape None; expected shape \(3, 2\)"),
        (torch.zeros(3, 1), 2, r"numbers has shape \(3, 1\); expected shape \(3, 2\)"),
        (torch.zeros(3, 1), 0, r"numbers has shape \(3, 1\); expected none, as numbers=0 says"),
    ],
)
def test_numbers_are_checked(numbers, expected, message):
    with pytest.raises(ModelError, match=message):
        check_numbers(numbers, expected, rows=3)
