import pytest
import torch
from support.nn_models import check_trainable, fit, size

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.seq2seq import Seq2Seq, sequence_loss


def test_size_follows_from_the_equations():
    def gru(inputs, hidden):
        return 3 * (inputs * hidden + hidden * hidden + 2 * hidden)

    model = Seq2Seq(11, 13, embedding=5, hidden=8)
    embeddings = (11 + 13) * 5
    attention = 8 * 8 + (16 * 8 + 8)  # equations 8 (general) and 5
    assert size(model) == embeddings + 2 * gru(5, 4) + gru(5, 8) + attention + (8 * 13 + 13)


def test_predicts_each_token_from_those_before():
    torch.manual_seed(0)
    model = Seq2Seq(9, 10, 4, 6, layers=2).eval()
    source, target = torch.randint(2, 9, (3, 5)), torch.randint(2, 10, (3, 4))
    logits = model(source, target)
    assert logits.shape == (3, 4, 10)
    changed = target.clone()
    changed[:, 2:] = 1
    torch.testing.assert_close(model(source, changed)[:, :3], logits[:, :3])
    assert not torch.allclose(model(source, changed)[:, 3], logits[:, 3])


def test_padding_of_the_source_is_not_read():
    torch.manual_seed(0)
    model = Seq2Seq(9, 10, 4, 6).eval()
    source, target = torch.tensor([[3, 4, 5, 0, 0], [6, 0, 0, 0, 0]]), torch.randint(2, 10, (2, 4))
    logits = model(source, target)
    torch.testing.assert_close(model(source[:, :3], target), logits)
    torch.testing.assert_close(model(source[1:, :1], target[1:]), logits[1:])


def test_a_source_without_tokens_is_answered_alike_in_any_batch():
    torch.manual_seed(0)
    model = Seq2Seq(9, 10, 4, 6).eval()
    target = torch.randint(2, 10, (1, 4))
    source = torch.zeros(1, 5, dtype=torch.int64)
    torch.testing.assert_close(model(source, target), model(source[:, :1], target))
    assert torch.equal(model.decode(source, 6), model.decode(source[:, :1], 6))


def test_decode_follows_its_own_best_guess():
    torch.manual_seed(0)
    model = Seq2Seq(9, 10, 4, 6).eval()
    source = torch.randint(2, 9, (20, 5))
    tokens = model.decode(source, 6)
    assert tokens.shape == (20, 6)
    torch.testing.assert_close(model(source, tokens).argmax(2), tokens)
    end = tokens[0, 2].item()
    ended = model.decode(source, 6, end=end)
    for row, free in zip(ended.tolist(), tokens.tolist(), strict=True):
        stop = free.index(end) + 1 if end in free else 6
        assert row == free[:stop] + [0] * (6 - stop)


def test_sequence_loss_is_the_mean_over_real_tokens():
    torch.manual_seed(0)
    logits, target = torch.randn(2, 3, 5), torch.tensor([[4, 2, 0], [0, 0, 0]])
    log = logits.log_softmax(2)
    expected = torch.tensor([-(log[0, 0, 4] + log[0, 1, 2]) / 2, 0.0])
    torch.testing.assert_close(sequence_loss(logits, target), expected)


def test_can_be_trained_and_shipped():
    torch.manual_seed(0)
    inputs = torch.randint(0, 9, (5, 7)), torch.randint(2, 10, (5, 4))
    check_trainable(Seq2Seq(9, 10, 4, 6, layers=2), *inputs)


@pytest.mark.whole
def test_learns_to_reverse():
    """Sources of 3 to 5 tokens, the target ends with token 2."""
    torch.manual_seed(0)
    source = torch.randint(3, 9, (1200, 5))
    length = torch.randint(3, 6, (1200, 1))
    places = torch.arange(6)
    source[places[:5] >= length] = 0
    back = (length - 1 - places).clamp(min=0)
    target = torch.where(places < length, source.gather(1, back), 0).scatter(1, length, 2)
    model = Seq2Seq(9, 9, embedding=16, hidden=48)
    fit(model, sequence_loss, (source[:1000], target[:1000]), target[:1000], epochs=14, lr=1e-2)
    found = model.decode(source[1000:], 6, end=2)
    assert (found == target[1000:]).all(1).float().mean() > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": 7}, "hidden=7: expected an even number"),
        ({"start": 10}, "start=10: expected a token's number, below 10"),
        ({"source_vocabulary": 0}, "source_vocabulary=0: expected an integer of at least 1"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Seq2Seq(**{"source_vocabulary": 9, "target_vocabulary": 10} | arguments)


def test_rejects_lengths_that_cannot_be():
    with pytest.raises(ConfigError, match="length=0: expected an integer of at least 1"):
        Seq2Seq(9, 10, 4, 6).decode(torch.ones(1, 2, dtype=torch.int64), 0)
