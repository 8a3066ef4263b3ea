"""SSD: finds objects in images with one pass over boxes of many shapes.

Liu et al., "SSD: Single Shot MultiBox Detector", ECCV 2016. Boxes are in units of the image. Truth and
detections have corners (left, top, right, bottom); default boxes have centres (x, y, width, height).
Class 0 is the background, objects have classes from 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from sparkdl.exceptions import ConfigError
from sparkdl.nn.models.arguments import check_sizes

_CENTRE_SCALE, _SIZE_SCALE = 0.1, 0.2  # of the authors' code: brings offsets to a deviation of about 1
_NEGATIVES = 3  # section 2.2: background boxes that count, for each that an object has


class Detections(NamedTuple):
    """The objects found in one image, best first."""

    boxes: Tensor  # corners, shape (objects, 4)
    scores: Tensor  # probability of the class, shape (objects,)
    classes: Tensor  # from 1, shape (objects,), int64


class SSDHead(nn.Module):
    """Predicts offsets and classes of the default boxes from feature maps of several sizes.

    Section 2.1 of the paper: on each map a 3x3 convolution for either. For SSD300's maps, of 512, 1024, 512,
    256, 256 and 256 channels with 4, 6, 6, 6, 4 and 4 boxes, and 20 classes, it has 3.3 million parameters.

    Args:
        channels: channels of each map.
        boxes: default boxes of a cell of each map.
        classes: number of classes, background not included.

    Shapes:
        input: one map (rows, channels, height, width) for each entry.
        output: offsets (rows, all boxes, 4) and logits (rows, all boxes, classes + 1), in the order of
            :func:`default_boxes`.

    Raises:
        ConfigError: if there are not as many entries in ``boxes`` as in ``channels``.
    """

    def __init__(self, channels: Sequence[int], boxes: Sequence[int], classes: int) -> None:
        super().__init__()
        check_sizes("SSDHead", channels=channels, boxes=boxes, classes=classes)
        if len(channels) != len(boxes) or not channels:
            raise ConfigError(
                f"SSDHead: channels={tuple(channels)}, boxes={tuple(boxes)}: expected as many entries in "
                "both, one for each map"
            )
        self.channels, self.boxes, self.classes = tuple(channels), tuple(boxes), classes
        self.offsets = nn.ModuleList(
            nn.Conv2d(width, 4 * count, 3, padding=1) for width, count in zip(channels, boxes, strict=True)
        )
        self.logits = nn.ModuleList(
            nn.Conv2d(width, (classes + 1) * count, 3, padding=1)
            for width, count in zip(channels, boxes, strict=True)
        )

    def forward(self, *maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return offsets and logits of each box."""
        offsets = [_by_box(layer(x), 4) for layer, x in zip(self.offsets, maps, strict=True)]
        logits = [_by_box(layer(x), self.classes + 1) for layer, x in zip(self.logits, maps, strict=True)]
        return torch.cat(offsets, 1), torch.cat(logits, 1)


class SSD(nn.Module):
    """A small single-shot detector: stages of convolutions, of which the last ones feed an :class:`SSDHead`.

    The paper's own network has VGG-16 in the place of the stages; for another one, use the head and
    :func:`default_boxes` on its feature maps.

    Args:
        classes: number of classes, background not included.
        size: height and width of the images; 2 to the number of ``widths`` divides it.
        channels: channels of the images.
        widths: channels of each stage: two 3x3 convolutions with batch normalisation, then a pooling.
        maps: stages that feed the head, counted from the last.
        smallest: size of the default boxes on the first map, in units of the image.
        largest: on the last map.
        ratios: width to height of boxes; their reciprocals come too, and two squares.

    Shapes:
        input: (rows, channels, size, size), float, about zero mean.
        output: offsets (rows, boxes, 4) and logits (rows, boxes, classes + 1), for :class:`SSDLoss` and
            :func:`detect`.

    Attributes:
        boxes: default boxes, shape (boxes, 4), centres and sizes.

    Raises:
        ConfigError: if a size cannot work.
    """

    boxes: Tensor

    def __init__(
        self,
        classes: int,
        size: int = 64,
        channels: int = 3,
        widths: Sequence[int] = (16, 32, 64, 64),
        maps: int = 2,
        smallest: float = 0.2,
        largest: float = 0.9,
        ratios: Sequence[float] = (2.0,),
    ) -> None:
        super().__init__()
        check_sizes("SSD", size=size, channels=channels, widths=widths, maps=maps)
        if size % (1 << len(widths)) or maps > len(widths):
            raise ConfigError(
                f"SSD: size={size}, widths={tuple(widths)}, maps={maps}: expected a size that "
                f"{1 << len(widths)} divides, for each stage halves it, and at most as many maps as stages"
            )
        self.classes, self.size, self.channels, self.widths = classes, size, channels, tuple(widths)
        self.maps, self.smallest, self.largest, self.ratios = maps, smallest, largest, tuple(ratios)
        befores = (channels, *widths)
        self.stages = nn.ModuleList(
            _stage(before, after) for before, after in zip(befores, widths, strict=False)
        )
        self.head = SSDHead(widths[-maps:], [2 + 2 * len(ratios)] * maps, classes)
        cells = [size >> (len(widths) - maps + index + 1) for index in range(maps)]
        boxes = default_boxes(cells, linear_scales(maps, smallest, largest), [ratios] * maps)
        self.register_buffer("boxes", boxes, persistent=False)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return offsets and logits of each default box."""
        x, maps = image, []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        found: tuple[Tensor, Tensor] = self.head(*maps[-self.maps :])
        return found


def linear_scales(maps: int, smallest: float = 0.2, largest: float = 0.9) -> list[float]:
    """Return the sizes of default boxes on each map, and one more beyond: equation 4 of the paper."""
    step = (largest - smallest) / max(maps - 1, 1)
    return [smallest + step * index for index in range(maps + 1)]


def default_boxes(cells: Sequence[int], scales: Sequence[float], ratios: Sequence[Sequence[float]]) -> Tensor:
    """Return the default boxes of all maps: section 2.2 of the paper.

    Args:
        cells: height and width of each map.
        scales: size of the boxes on each map in units of the image, and one more for the second square
            of the last.
        ratios: for each map the ratios of width to height besides 1; their reciprocals come too.

    Returns:
        (boxes, 4): centre x, centre y, width, height; by map, row, column, and then shape.

    Raises:
        ConfigError: if the entries do not fit together.
    """
    if len(ratios) != len(cells) or len(scales) != len(cells) + 1:
        raise ConfigError(
            f"default_boxes: {len(cells)} cells, {len(scales)} scales and {len(ratios)} ratios: expected one "
            "of each for each map, and one scale more"
        )
    boxes = []
    for index, side in enumerate(cells):
        scale, between = scales[index], math.sqrt(scales[index] * scales[index + 1])
        shapes = [(scale, scale), (between, between)]
        for ratio in ratios[index]:
            root = math.sqrt(ratio)
            shapes += [(scale * root, scale / root), (scale / root, scale * root)]
        centres = (torch.arange(side) + 0.5) / side
        y, x = torch.meshgrid(centres, centres, indexing="ij")
        grid = torch.stack([x, y], 2).reshape(-1, 1, 2).expand(-1, len(shapes), -1)
        sizes = torch.tensor(shapes).expand(len(grid), -1, -1)
        boxes.append(torch.cat([grid, sizes], 2).reshape(-1, 4))
    return torch.cat(boxes)


class SSDLoss(nn.Module):
    """The loss of section 2.2: cross-entropy and smooth L1, over matched boxes and the worst of the others.

    ``SSDLoss(model.boxes)(model(images), (corners, classes))``

    Args:
        boxes: default boxes, shape (boxes, 4).
        threshold: least overlap, as intersection over union, at which a default box has an object.

    Shapes:
        output: offsets (rows, boxes, 4) and logits (rows, boxes, classes + 1).
        label: corners (rows, objects, 4) and classes (rows, objects), integers; 0 where there is no object.
        loss: (rows,).
    """

    boxes: Tensor

    def __init__(self, boxes: Tensor, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold
        self.register_buffer("boxes", boxes.detach().clone())

    def forward(self, output: tuple[Tensor, Tensor], label: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of each row."""
        offsets, logits = output
        corners, classes = match(self.boxes, *label, threshold=self.threshold)
        matched = classes > 0
        count = matched.sum(1)
        distance = nnf.smooth_l1_loss(offsets, encode(self.boxes, corners), reduction="none").sum(2)
        surprise = nnf.cross_entropy(logits.transpose(1, 2), classes, reduction="none")
        # Most boxes are background: only those count that are hardest to tell.
        background = surprise.detach().masked_fill(matched, -math.inf)
        rank = background.argsort(1, descending=True).argsort(1)
        counted = matched | (rank < (_NEGATIVES * count.clamp(min=1)).unsqueeze(1))
        total = (distance * matched).sum(1) + (surprise * counted).sum(1)
        return total / count.clamp(min=1)


def match(boxes: Tensor, corners: Tensor, classes: Tensor, threshold: float = 0.5) -> tuple[Tensor, Tensor]:
    """Give objects to default boxes: to those that overlap enough, and each object to its best box.

    Objects have corners (rows, objects, 4), and classes (rows, objects) that are 0 where there is none.
    Returned are corners (rows, boxes, 4) and class (rows, boxes) of each default box's object, 0 for none.
    """
    overlap = iou(to_corners(boxes), corners)  # rows, boxes, objects
    overlap = overlap.masked_fill((classes == 0).unsqueeze(1), -1.0)
    best, chosen = overlap.max(2)
    owner = overlap.argmax(1)  # rows, objects
    rows = torch.arange(len(corners), device=corners.device)
    for index in range(corners.shape[1]):  # one by one: of two objects with one best box, the later has it
        real = classes[:, index] > 0
        chosen[rows[real], owner[real, index]] = index
        best[rows[real], owner[real, index]] = 1.0
    found = classes.gather(1, chosen).masked_fill(best < threshold, 0)
    return corners.gather(1, chosen.unsqueeze(2).expand(-1, -1, 4)), found.long()


def encode(boxes: Tensor, corners: Tensor) -> Tensor:
    """Return the offsets by which default boxes become boxes with these corners: equation 2.

    Shapes:
        boxes: (boxes, 4); corners: (..., boxes, 4); result as ``corners``.
    """
    low, high = corners[..., :2], corners[..., 2:]
    centre = ((low + high) / 2 - boxes[:, :2]) / boxes[:, 2:] / _CENTRE_SCALE
    size = torch.log(((high - low) / boxes[:, 2:]).clamp(min=1e-6)) / _SIZE_SCALE
    return torch.cat([centre, size], -1)


def decode(boxes: Tensor, offsets: Tensor) -> Tensor:
    """Return the corners that offsets make of default boxes; the reverse of :func:`encode`."""
    centre = boxes[:, :2] + offsets[..., :2] * _CENTRE_SCALE * boxes[:, 2:]
    size = boxes[:, 2:] * torch.exp(offsets[..., 2:] * _SIZE_SCALE)
    return to_corners(torch.cat([centre, size], -1))


def to_corners(boxes: Tensor) -> Tensor:
    """Turn centres and sizes into corners."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def iou(one: Tensor, other: Tensor) -> Tensor:
    """Return the intersection over union of each pair of boxes.

    Shapes:
        one: (..., n, 4); other: (..., m, 4), corners; result: (..., n, m).
    """
    one, other = one.unsqueeze(-2), other.unsqueeze(-3)
    shared = (
        torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])
    ).clamp(min=0)
    intersection = shared.prod(-1)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (one, other)]
    return intersection / (areas[0] + areas[1] - intersection).clamp(min=1e-12)


def nms(corners: Tensor, scores: Tensor, threshold: float = 0.45) -> Tensor:
    """Return the numbers of the boxes that overlap no better one, best first: non-maximum suppression.

    Of two boxes whose intersection over union is above ``threshold``, the worse goes.
    """
    order = scores.argsort(descending=True, stable=True)
    overlaps = iou(corners[order], corners[order]) > threshold
    gone = torch.zeros(len(order), dtype=torch.bool, device=corners.device)
    for index in range(len(order)):
        if not gone[index]:
            gone[index + 1 :] |= overlaps[index, index + 1 :]
    return order[~gone]


@torch.no_grad()
def detect(
    output: tuple[Tensor, Tensor],
    boxes: Tensor,
    score: float = 0.5,
    threshold: float = 0.45,
    most: int = 200,
) -> list[Detections]:
    """Return the objects of each image (section 3.7): by class, without those that overlap better ones.

    Args:
        output: output of :class:`SSD` or :class:`SSDHead` for the images.
        boxes: default boxes, shape (boxes, 4).
        score: least probability of a class.
        threshold: overlap at which the worse of two boxes of one class goes.
        most: detections to return of an image.
    """
    offsets, logits = output
    corners, probabilities = decode(boxes, offsets).clamp(0, 1), logits.softmax(2)
    found = []
    for row_corners, row_probabilities in zip(corners, probabilities, strict=True):
        parts = []
        for number in range(1, logits.shape[2]):
            sure = row_probabilities[:, number] >= score
            places, scores = row_corners[sure], row_probabilities[sure, number]
            kept = nms(places, scores, threshold)
            parts.append(Detections(places[kept], scores[kept], torch.full_like(kept, number)))
        joined = Detections(*(torch.cat(values) for values in zip(*parts, strict=True)))
        best = joined.scores.argsort(descending=True, stable=True)[:most]
        found.append(Detections(*(values[best] for values in joined)))
    return found


def _stage(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.Conv2d(after, after, 3, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


def _by_box(x: Tensor, values: int) -> Tensor:
    """Turn (rows, boxes * values, height, width) into (rows, height * width * boxes, values)."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, values)
