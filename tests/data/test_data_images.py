"""Decoding and fitting of images, and random augmentation, without Spark."""

from __future__ import annotations

import io
import pickle
import struct
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sparkdl.data import images
from sparkdl.data.augment import Normalize, RandomCrop, RandomFlip
from sparkdl.data.images import ImageFormat
from sparkdl.exceptions import ConfigError, DataError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(wanted: ImageFormat, pixels: np.ndarray) -> np.ndarray:
    return wanted.decode(encoded(Image.fromarray(pixels)))


PNG = encoded(Image.fromarray(PIXELS))

# -- decoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_give_the_pixels(kind: str) -> None:
    data = encoded(Image.fromarray(PIXELS), kind)
    found = ImageFormat((6, 8), dtype="uint8").decode(data)
    np.testing.assert_array_equal(found, PIXELS.transpose(2, 0, 1))
    assert found.flags.c_contiguous


def test_bytearrays_and_views_decode_too() -> None:
    wanted = ImageFormat((6, 8), dtype="uint8", layout="HWC")
    for data in (bytearray(PNG), memoryview(PNG)):
        np.testing.assert_array_equal(wanted.decode(data), PIXELS)


def test_jpeg_is_close() -> None:
    smooth = np.linspace(0, 255, 64 * 64 * 3).reshape(64, 64, 3).astype(np.uint8)
    found = ImageFormat(64, dtype="uint8", layout="HWC").decode(
        encoded(Image.fromarray(smooth), "JPEG", quality=95)
    )
    assert np.abs(found.astype(int) - smooth).max() < 20


def test_images_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # held turned: to be rotated by a quarter
    turned = encoded(Image.fromarray(PIXELS), "PNG", exif=exif)
    found = ImageFormat((8, 6), dtype="uint8", layout="HWC").decode(turned)
    np.testing.assert_array_equal(found, np.rot90(PIXELS, -1))


def test_every_kind_of_pixel_becomes_colour_or_grey() -> None:
    grey = PIXELS[:, :, 0]
    colour = ImageFormat((6, 8), dtype="uint8", layout="HWC")
    single = ImageFormat((6, 8), channels=1, dtype="uint8")
    three = np.repeat(grey[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(colour.decode(encoded(Image.fromarray(grey))), three)
    np.testing.assert_array_equal(single.decode(encoded(Image.fromarray(three))), grey[None])
    seen_through = np.dstack([PIXELS, np.full((6, 8), 7, np.uint8)])
    np.testing.assert_array_equal(colour.decode(encoded(Image.fromarray(seen_through))), PIXELS)
    palette = Image.fromarray(PIXELS).quantize(4)
    opaque = np.asarray(palette.convert("RGB"))
    palette.info["transparency"] = bytes([0, 255, 255, 255])
    np.testing.assert_array_equal(colour.decode(encoded(palette)), opaque)
    bits = Image.fromarray(grey > 99)
    np.testing.assert_array_equal(single.decode(encoded(bits))[0], np.where(grey > 99, 255, 0))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_cut_off(kind: str) -> None:
    wide = PIXELS[:, :, 0].astype(np.uint16) * 256 + 3
    found = ImageFormat((6, 8), channels=1, dtype="uint8").decode(encoded(Image.fromarray(wide), kind))
    np.testing.assert_array_equal(found[0], PIXELS[:, :, 0])


def tiff(bits: int, photometric: int, data: bytes) -> bytes:
    """Return a TIFF of 2 x 4 grey pixels, as the specification (revision 6.0, 1992) says."""
    tags = [(256, 4), (257, 2), (258, bits), (259, 1), (262, photometric), (273, 8), (277, 1), (278, 2)]
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in [*tags, (279, len(data))]]
    start, end = struct.pack("<2sHI", b"II", 42, 8 + len(data)), struct.pack("<I", 0)
    return b"".join([start, data, struct.pack("<H", len(entries)), *entries, end])


def test_a_tiff_says_which_value_is_white() -> None:
    bright = np.array([[0, 1024, 2048, 4095], [4095, 0, 96, 3000]])
    pairs = [(int(a), int(b)) for a, b in bright.reshape(-1, 2)]
    twelve = b"".join((a << 12 | b).to_bytes(3, "big") for a, b in pairs)
    sixteen, dark = ((values * 16 + 15).astype("<u2").tobytes() for values in (bright, 4095 - bright))
    eight = (255 - bright // 16).astype(np.uint8).tobytes()
    for data in (tiff(12, 1, twelve), tiff(16, 1, sixteen), tiff(16, 0, dark), tiff(8, 0, eight)):
        found = ImageFormat((2, 4), channels=1, dtype="uint8").decode(data)
        np.testing.assert_array_equal(found[0], bright // 16)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes that are no readable image"),
        (b"no image at all", "15 bytes that are no readable image"),
        (PNG[:60], "60 bytes that are no readable image"),
        (encoded(Image.fromarray(PIXELS), "JPEG")[:-200], "no readable image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "no readable image"),
        (encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF"), "pixels are floats"),
        (encoded(Image.fromarray(np.ones((2, 2), np.int32)), "TIFF"), "pixels are integers of 32 bits"),
    ],
    ids=["empty", "text", "cut PNG", "cut JPEG", "PostScript", "floats", "integers"],
)
def test_what_cannot_be_decoded_is_a_data_error(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageFormat(4).decode(data)


def test_a_decompression_bomb_is_a_data_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(DataError, match="decompression bomb"):
        ImageFormat(4).decode(PNG)


def test_a_missing_pillow_is_no_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"pip install 'sparkdl\[images\]'"):
        ImageFormat(4).decode(PNG)


# -- Spark's image rows -------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_spark_rows_are_blue_green_red(channels: int) -> None:
    pixels = np.dstack([PIXELS, PIXELS[:, :, :1]])[:, :, :channels]
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[channels]
    wanted = ImageFormat((6, 8), dtype="uint8", layout="HWC")
    found = wanted.from_spark(6, 8, channels, (channels - 1) * 8, bytearray(pixels[:, :, order].tobytes()))
    np.testing.assert_array_equal(found, pixels[:, :, :3] if channels > 1 else pixels.repeat(3, axis=2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((-1, -1, -1, -1, b""), "Spark could not decode"),
        ((1, 1, 2, 8, b"12"), "type 8 with 2 channels"),
        ((1, 1, 3, 21, bytes(12)), "type 21 with 3 channels"),
        ((2, 2, 3, 16, bytes(11)), "11 bytes of pixels for 2 x 2 x 3"),
    ],
)
def test_spark_rows_that_do_not_fit(fields: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageFormat(4).from_spark(*fields)


# -- size and values ----------------------------------------------------------------------------


def test_resize_stretches_the_whole_image() -> None:
    left_black = np.zeros((10, 40, 3), np.uint8)
    left_black[:, 20:] = 255
    found = decoded(ImageFormat((4, 4), dtype="uint8", layout="HWC"), left_black)
    np.testing.assert_array_equal(found[:, 0], 0)
    np.testing.assert_array_equal(found[:, 3], 255)


@pytest.mark.parametrize("shape", [(10, 40), (40, 10), (10, 10), (7, 13), (1, 1), (3, 1000)])
@pytest.mark.parametrize("size", [(4, 4), (5, 3), (16, 2)])
@pytest.mark.parametrize("shorter_side", [None, 16, 23])
def test_crop_keeps_proportions_and_cuts_the_centre(
    shape: tuple[int, int], size: tuple[int, int], shorter_side: int | None
) -> None:
    height, width = shape
    left, top, right, bottom = ImageFormat(size, "crop", shorter_side)._window((width, height))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    across, down = (right - left) / size[1], (bottom - top) / size[0]
    assert across == pytest.approx(down)  # the same scale in both directions
    assert left == pytest.approx(width - right)
    assert top == pytest.approx(height - bottom)
    if shorter_side:
        assert min(shape) / shorter_side == pytest.approx(across)
    else:
        assert right - left == pytest.approx(width) or bottom - top == pytest.approx(height)
    assert decoded(ImageFormat(size, "crop", shorter_side), np.zeros(shape, np.uint8)).shape == (3, *size)


def test_a_crop_of_the_size_itself_copies_pixels() -> None:
    found = ImageFormat((4, 4), "crop", 6, dtype="uint8", layout="HWC").decode(PNG)
    np.testing.assert_array_equal(found, PIXELS[1:5, 2:6])


def test_values_are_scaled_then_normalised() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    plain = ImageFormat((6, 8)).decode(PNG)
    assert plain.dtype == np.float32
    np.testing.assert_allclose(plain, PIXELS.transpose(2, 0, 1) / 255, atol=1e-7)
    found = ImageFormat((6, 8), mean=mean, std=std).decode(PNG)
    expected = (PIXELS / 255 - mean) / std
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1), atol=1e-6)
    stored = torch.from_numpy(ImageFormat((6, 8), dtype="uint8").decode(PNG))
    np.testing.assert_array_equal(Normalize(mean, std)(stored[None])[0], found)


def test_shapes() -> None:
    assert ImageFormat(4).shape == (3, 4, 4)
    assert ImageFormat([4, 5], channels=1, layout="HWC").shape == (4, 5, 1)  # type: ignore[arg-type]
    assert ImageFormat((4, 5), channels=1).decode(PNG).shape == (1, 4, 5)


def test_a_format_travels() -> None:
    wanted = ImageFormat(4, "crop", mean=(0, 0, 0))
    assert pickle.loads(pickle.dumps(wanted)) == wanted
    assert "torch" in sys.modules  # of this test; the module itself needs none
    assert not any(name.startswith("torch") for name in vars(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size=0: expected height and width"),
        ({"size": (4,)}, r"size=\(4,\): expected height and width"),
        ({"size": (4, 2.5)}, "expected height and width"),
        ({"size": 4, "mode": "stretch"}, "mode='stretch': expected 'resize' or 'crop'"),
        ({"size": 4, "channels": 4}, "channels=4: expected 1 or 3"),
        ({"size": 4, "dtype": "float64"}, "dtype='float64'"),
        ({"size": 4, "layout": "NCHW"}, "layout='NCHW'"),
        ({"size": 4, "shorter_side": 8}, "has a meaning with mode='crop' only"),
        ({"size": (4, 9), "mode": "crop", "shorter_side": 8}, "shorter_side=8: expected at least 9"),
        ({"size": 4, "mean": (0.5,)}, r"mean=\(0.5,\): expected 3 finite numbers"),
        ({"size": 4, "mean": (0.5, 0, float("nan"))}, "expected 3 finite numbers"),
        ({"size": 4, "std": (1, 0, 1)}, r"std=\(1.0, 0.0, 1.0\): expected positive"),
        ({"size": 4, "dtype": "uint8", "std": (1, 1, 1)}, "std needs dtype='float32'"),
    ],
)
def test_formats_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ImageFormat(**arguments)


# -- augmentation -------------------------------------------------------------------------------

BATCH = torch.arange(64 * 2 * 5 * 6).reshape(64, 2, 5, 6)


def test_flips_are_drawn_for_each_row() -> None:
    torch.manual_seed(0)
    found = RandomFlip(0.5)(BATCH)
    flipped = (found == BATCH.flip(3)).flatten(1).all(1)
    assert ((found == BATCH).flatten(1).all(1) ^ flipped).all()
    assert 20 < flipped.sum() < 44
    torch.testing.assert_close(RandomFlip(1.0)(BATCH), BATCH.flip(3))
    torch.testing.assert_close(RandomFlip(0.0)(BATCH), BATCH)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_crops_are_windows_of_the_padded_image(dtype: torch.dtype) -> None:
    images = (BATCH % 251).to(dtype)
    found = RandomCrop((4, 3), padding=2)(images)
    assert found.dtype == dtype
    assert found.shape == (64, 2, 4, 3)
    padded = nn.functional.pad(images, [2] * 4)
    seen = set()
    for row in range(64):
        places = [
            (y, x)
            for y in range(6)
            for x in range(8)
            if torch.equal(padded[row, :, y : y + 4, x : x + 3], found[row])
        ]
        assert places
        seen.update(places[:1])
    assert len(seen) > 15
    assert RandomCrop(padding=2)(images).shape == images.shape


def test_augmentation_is_torchs_randomness() -> None:
    augment = nn.Sequential(RandomCrop(padding=1), RandomFlip())
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(augment(BATCH))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_eval_switches_randomness_off() -> None:
    augment = nn.Sequential(RandomCrop(3, padding=1), RandomFlip(1.0)).eval()
    torch.testing.assert_close(augment(BATCH), BATCH[:, :, 1:4, 1:4])


@pytest.mark.parametrize(
    ("shape", "top", "left"),
    [((5, 6), 1, 2), ((6, 7), 2, 2), ((7, 8), 2, 2), ((8, 9), 2, 3), ((4, 3), 0, 0), ((9, 10), 3, 4)],
)
def test_the_centre_is_that_of_torchvision(shape: tuple[int, int], top: int, left: int) -> None:
    """Halves of a pixel go to the even side, as ``int(round((image_height - crop_height) / 2.0))`` does."""
    images = torch.arange(shape[0] * shape[1]).reshape(1, 1, *shape)
    found = RandomCrop((3, 3)).eval()(images)
    assert torch.equal(found, images[:, :, top : top + 3, left : left + 3])


def test_floats_are_normalised_as_they_are() -> None:
    found = Normalize([1.0, 2.0], [2.0, 4.0])(BATCH.float())
    torch.testing.assert_close(found[:, 1], (BATCH[:, 1] - 2) / 4)


def test_batches_that_do_not_fit() -> None:
    with pytest.raises(DataError, match=r"expected images of shape .*, got \[2, 5, 6\]"):
        RandomFlip()(BATCH[0])
    with pytest.raises(DataError, match="got tuple"):
        RandomCrop(2)((BATCH,))
    with pytest.raises(DataError, match="images of 5 x 6 are too small"):
        RandomCrop(8, padding=1)(BATCH)
    with pytest.raises(DataError, match="has 3 means, the images have 2 channels"):
        Normalize([0] * 3, [1] * 3)(BATCH)
    with pytest.raises(DataError, match=r"the images are torch.int64, .* expected bytes"):
        Normalize([0] * 2, [1] * 2)(BATCH)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomFlip(1.5), "p=1.5"),
        (lambda: RandomCrop(0), "size=0"),
        (lambda: RandomCrop(padding=-1), "padding=-1"),
        (RandomCrop, r"RandomCrop\(\) changes nothing"),
        (lambda: Normalize([0.5], [0.0]), "expected as many positive std as mean"),
        (lambda: Normalize([0.5], [1.0, 1.0]), "expected as many"),
    ],
)
def test_augmentation_that_cannot_be(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_augmentation_says_what_it_does() -> None:
    shown = repr(nn.Sequential(RandomCrop(4, padding=1), RandomFlip(), Normalize([0.5], [0.25])))
    assert "RandomCrop(size=(4, 4), padding=1)" in shown
    assert "RandomFlip(p=0.5)" in shown
    assert "Normalize(mean=[0.5], std=[0.25])" in shown
