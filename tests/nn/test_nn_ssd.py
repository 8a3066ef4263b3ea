import math

import pytest
import torch
from support.nn_models import built_on_meta, check_trainable, fit, size

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.ssd import (
    SSD,
    SSDHead,
    SSDLoss,
    decode,
    default_boxes,
    detect,
    encode,
    iou,
    linear_scales,
    match,
    nms,
    to_corners,
)

SSD300 = {"cells": (38, 19, 10, 5, 3, 1), "channels": (512, 1024, 512, 256, 256, 256)}
BOXES = (4, 6, 6, 6, 4, 4)


def test_ssd300_has_the_boxes_of_the_paper():
    scales = [0.1, *linear_scales(5)]
    ratios = [(2.0,) if count == 4 else (2.0, 3.0) for count in BOXES]
    boxes = default_boxes(SSD300["cells"], scales, ratios)
    assert boxes.shape == (8732, 4)  # table 7
    torch.testing.assert_close(boxes[0], torch.tensor([0.5 / 38, 0.5 / 38, 0.1, 0.1]))
    torch.testing.assert_close(boxes[2], torch.tensor([0.5 / 38, 0.5 / 38, 0.1 * 2**0.5, 0.1 / 2**0.5]))
    assert boxes[-1, 2].item() == pytest.approx(0.9 / math.sqrt(2))
    assert boxes[-3, 2].item() == pytest.approx(math.sqrt(0.9 * 1.075))


def test_ssd300s_head_has_the_size_that_follows():
    head = built_on_meta(SSDHead, SSD300["channels"], BOXES, 20)
    expected = sum((9 * c + 1) * k * (4 + 21) for c, k in zip(SSD300["channels"], BOXES, strict=True))
    assert size(head) == expected == 3_341_550


def test_output_is_in_the_order_of_the_boxes():
    head = SSDHead((2,), (3,), 1)
    with torch.no_grad():
        head.logits[0].weight.zero_()
        head.logits[0].bias.copy_(torch.arange(6.0))
        head.offsets[0].weight.zero_()
        head.offsets[0].weight[4:, 0, 1, 1] = 1  # boxes 1 and 2 of a cell see its first channel
        head.offsets[0].bias.zero_()
    x = torch.zeros(1, 2, 2, 2)
    x[0, 0] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    offsets, logits = head(x)
    assert offsets.shape == (1, 12, 4)
    assert offsets[0, :, 0].tolist() == [0, 1, 1, 0, 2, 2, 0, 3, 3, 0, 4, 4]
    assert logits.tolist() == [[[0, 1], [2, 3], [4, 5]] * 4]


def test_iou():
    one = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    other = torch.tensor([[1.0, 1.0, 3.0, 3.0], [0.0, 0.0, 2.0, 2.0], [5.0, 5.0, 6.0, 6.0]])
    torch.testing.assert_close(iou(one, other), torch.tensor([[1 / 7, 1.0, 0.0], [0.0, 0.0, 0.0]]))


def test_match_gives_each_object_its_best_box_and_all_that_overlap():
    boxes = torch.tensor([[0.25, 0.25, 0.5, 0.5], [0.26, 0.25, 0.5, 0.5], [0.75, 0.75, 0.4, 0.4]])
    corners = torch.tensor([[[0.0, 0.0, 0.5, 0.5], [0.9, 0.9, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]])
    found, classes = match(boxes, corners, torch.tensor([[2, 1, 0]]))
    assert classes.tolist() == [[2, 2, 1]]  # the last overlaps its object by less than a half
    torch.testing.assert_close(found[0], corners[0, [0, 0, 1]])
    _, none = match(boxes, corners, torch.zeros(1, 3, dtype=torch.int64))
    assert not none.any()


def test_decode_undoes_encode():
    torch.manual_seed(0)
    boxes = torch.rand(20, 4) + 0.1
    low = torch.rand(3, 20, 2)
    corners = torch.cat([low, low + 0.05 + torch.rand(3, 20, 2)], 2)
    torch.testing.assert_close(decode(boxes, encode(boxes, corners)), corners)
    assert not encode(boxes, to_corners(boxes)).abs().gt(1e-4).any()


def test_nms_keeps_the_best_of_those_that_overlap():
    corners = torch.tensor([[0.0, 0, 1, 1], [0, 0, 1, 0.9], [2, 2, 3, 3], [0, 0, 0.9, 1]])
    assert nms(corners, torch.tensor([0.5, 0.9, 0.3, 0.8])).tolist() == [1, 2]
    assert nms(corners, torch.tensor([0.5, 0.9, 0.3, 0.8]), threshold=0.95).tolist() == [1, 3, 0, 2]
    assert nms(corners[:0], torch.tensor([])).tolist() == []


def test_loss_is_zero_for_perfect_output_and_counts_the_worst_background():
    boxes = torch.tensor([[0.2, 0.2, 0.2, 0.2]] + [[0.8, 0.8, 0.2, 0.2]] * 5)
    label = to_corners(boxes[:1]).reshape(1, 1, 4), torch.tensor([[1]])
    logits = torch.tensor([[[-50.0, 50.0]] + [[50.0, -50.0]] * 5])
    loss = SSDLoss(boxes)
    torch.testing.assert_close(loss((torch.zeros(1, 6, 4), logits), label), torch.zeros(1))
    logits[0, 1:] = 0.0  # five boxes of background, three of which count
    torch.testing.assert_close(loss((torch.zeros(1, 6, 4), logits), label), torch.tensor([3 * math.log(2)]))
    offsets = torch.zeros(1, 6, 4)
    offsets[0, 0, 0], offsets[0, 1, 0] = 3.0, 3.0  # of the second no object says where it should be
    torch.testing.assert_close(loss((offsets, logits), label), torch.tensor([3 * math.log(2) + 2.5]))


def test_an_image_without_objects_has_a_loss():
    boxes = torch.rand(8, 4)
    label = torch.zeros(1, 2, 4), torch.zeros(1, 2, dtype=torch.int64)
    loss = SSDLoss(boxes)((torch.zeros(1, 8, 4), torch.zeros(1, 8, 3)), label)
    torch.testing.assert_close(loss, torch.tensor([3 * math.log(3)]))


def test_detect_sorts_by_score_and_keeps_classes_apart():
    boxes = torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.5, 0.5, 0.4, 0.4], [0.2, 0.2, 0.1, 0.1]])
    logits = torch.tensor([[[0.0, 5.0, 0.0], [0.0, 0.0, 3.0], [9.0, 0.0, 0.0]]])
    (found,) = detect((torch.zeros(1, 3, 4), logits), boxes)
    assert found.classes.tolist() == [1, 2]
    assert found.scores[0] > found.scores[1] > 0.5
    torch.testing.assert_close(found.boxes[0], torch.tensor([0.3, 0.3, 0.7, 0.7]))
    (first,) = detect((torch.zeros(1, 3, 4), logits), boxes, most=1)
    assert first.classes.tolist() == [1]
    (nothing,) = detect((torch.zeros(1, 3, 4), logits), boxes, score=0.9999)
    assert nothing.boxes.shape == (0, 4)


def test_can_be_trained_and_shipped():
    torch.manual_seed(0)
    model = SSD(2, size=32, widths=(4, 4, 4), maps=2)
    assert model.boxes.shape == ((8 * 8 + 4 * 4) * 4, 4)
    check_trainable(model, torch.randn(4, 3, 32, 32))


def shapes(rows, side=32):
    """Draw one or two filled shapes on each image: squares (class 1) and upright crosses (class 2)."""
    images = 0.1 * torch.randn(rows, 1, side, side)
    corners, classes = torch.zeros(rows, 2, 4), torch.zeros(rows, 2, dtype=torch.int64)
    for row in range(rows):
        for index in range(1 + row % 2):
            width = int(torch.randint(8, 15, ()))
            left = 16 * index + int(torch.randint(0, 17 - width, ()))
            top = int(torch.randint(0, side - width, ()))
            kind = int(torch.randint(1, 3, ()))
            area = images[row, 0, top : top + width, left : left + width]
            if kind == 1:
                area += 1
            else:
                third = width // 3
                area[third:-third] += 1
                area[:, third:-third] += 1
            corners[row, index] = torch.tensor([left, top, left + width, top + width]) / side
            classes[row, index] = kind
    return images, corners, classes


@pytest.mark.slow
def test_learns_to_find_shapes():
    torch.manual_seed(0)
    images, corners, classes = shapes(500)
    model = SSD(2, size=32, channels=1, widths=(16, 32, 32), maps=2, smallest=0.3, largest=0.6)
    label = corners[:400], classes[:400]
    fit(model, SSDLoss(model.boxes), (images[:400],), label, epochs=12, lr=5e-3, batch=40)
    with torch.no_grad():
        found = detect(model(images[400:]), model.boxes)
    right = wrong = 0
    for detections, places, kinds in zip(found, corners[400:], classes[400:], strict=True):
        overlaps = iou(detections.boxes, places) > 0.5
        hits = overlaps & (detections.classes[:, None] == kinds)
        right += int(hits.any(0)[kinds > 0].sum())
        wrong += int((~hits.any(1)).sum())
    objects = int((classes[400:] > 0).sum())
    assert right > 0.85 * objects
    assert wrong < 0.2 * objects


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 40}, "size=40, .*: expected a size that 16 divides"),
        ({"maps": 5}, "maps=5: expected .* at most as many maps as stages"),
        ({"classes": 0}, "classes=0: expected an integer of at least 1"),
    ],
)
def test_rejects_what_cannot_be(arguments, message):
    with pytest.raises(ConfigError, match=message):
        SSD(**{"classes": 2} | arguments)


def test_rejects_entries_that_do_not_fit_together():
    with pytest.raises(ConfigError, match="expected as many entries in both"):
        SSDHead((4, 4), (4,), 2)
    with pytest.raises(ConfigError, match="2 cells, 2 scales and 2 ratios"):
        default_boxes((4, 2), (0.2, 0.9), ((2.0,), (2.0,)))
