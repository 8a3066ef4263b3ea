import pytest
import torch
from support.nn_models import built_on_meta, check_trainable, fit, size
from torch.nn import functional as nnf

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.convlstm import ConvLSTM, ConvLSTMCell

TABLE_1 = [((256,), 13_524_496), ((128, 128), 10_042_896), ((128, 64, 64), 7_585_296)]


@pytest.mark.parametrize(("hidden", "parameters"), TABLE_1)
def test_sizes_are_those_of_the_paper(hidden, parameters):
    model = built_on_meta(ConvLSTM, channels=1, hidden=hidden, kernel=5, patch=4)
    assert size(model) == parameters


def test_a_cell_of_one_pixel_is_an_lstm_with_peepholes():
    torch.manual_seed(0)
    cell = ConvLSTMCell(2, 3, kernel=1)
    torch.nn.init.normal_(cell.peephole)
    x, hidden, before = torch.randn(4, 2), torch.randn(4, 3), torch.randn(4, 3)
    weights = cell.gates.weight.flatten(1)
    i, f, g, o = (torch.cat([x, hidden], 1) @ weights.T + cell.gates.bias).chunk(4, 1)
    peep = cell.peephole.flatten(1)
    after = torch.sigmoid(f + peep[1] * before) * before + torch.sigmoid(i + peep[0] * before) * torch.tanh(g)
    expected = torch.sigmoid(o + peep[2] * after) * torch.tanh(after), after
    images = [tensor[:, :, None, None] for tensor in (x, hidden, before)]
    found = cell(images[0], (images[1], images[2]))
    torch.testing.assert_close(tuple(tensor.flatten(1) for tensor in found), expected)


def test_shapes():
    torch.manual_seed(0)
    model = ConvLSTM(channels=2, hidden=(4, 3), steps=3, kernel=3, patch=2)
    assert model(torch.rand(2, 5, 2, 8, 12)).shape == (2, 3, 2, 8, 12)


def test_can_be_trained_and_shipped():
    torch.manual_seed(0)
    check_trainable(ConvLSTM(1, (4, 3), steps=2, kernel=3, patch=2), torch.rand(2, 3, 1, 8, 8))


@pytest.mark.whole
def test_learns_to_move_a_square_further():
    """Squares of 4 x 4 pixels that move by one pixel an image to the left or right."""
    torch.manual_seed(0)
    rows, moves = 240, torch.arange(240) % 2 * 2 - 1
    top, left = torch.randint(0, 9, (rows,)), torch.randint(4, 7, (rows,))
    images = torch.zeros(rows, 6, 1, 12, 12)
    for row in range(rows):
        for time in range(6):
            x = (left[row] + moves[row] * (time - 2)).clamp(0, 8)
            images[row, time, 0, top[row] : top[row] + 4, x : x + 4] = 1
    past, future = images[:, :4], images[:, 4:]
    model = ConvLSTM(hidden=(16, 16), steps=2, kernel=3, patch=2)
    loss = nnf.binary_cross_entropy_with_logits
    fit(model, loss, (past[:200],), future[:200], epochs=16, lr=2e-2, batch=40)
    with torch.no_grad():
        error = nnf.mse_loss(torch.sigmoid(model(past[200:])), future[200:])
    persistence = nnf.mse_loss(past[200:, -1:].expand(-1, 2, -1, -1, -1), future[200:])
    assert error < 0.3 * persistence


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": ()}, r"hidden=\(\): expected the channels of at least one layer"),
        ({"kernel": 4}, "kernel=4: expected inputs from 0 and an odd kernel"),
        ({"patch": 0}, "patch=0: expected an integer of at least 1"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ConvLSTM(**arguments)
