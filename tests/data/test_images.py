"""Every kind of file becomes what a person sees, or a reason."""

import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cls_jax.data.image_files import find_images, read_ahead
from cls_jax.data.images import ImageError, read_image
from cls_jax.errors import UserError

SHAPE = (8, 8, 3)
RED, WHITE = (255, 0, 0), (255, 255, 255)


def create_picture(mode="RGB", size=(8, 8)) -> Image.Image:
    """Red above blue."""
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[: size[1] // 2] = RED
    pixels[size[1] // 2 :] = (0, 0, 255)
    return Image.fromarray(pixels).convert(mode)


def save(image, path, **options):
    image.save(path, **options)
    return path


@pytest.mark.parametrize("ending", ["png", "bmp", "gif", "tif", "webp"])
def test_lossless_image_of_the_right_size_is_unchanged(tmp_path, ending):
    options = {"lossless": True} if ending == "webp" else {}
    path = save(create_picture(), tmp_path / f"a.{ending}", **options)
    np.testing.assert_array_equal(read_image(path, SHAPE), np.asarray(create_picture()))


def test_jpeg_of_the_right_size_is_what_pillow_decodes(tmp_path):
    path = save(create_picture(), tmp_path / "a.jpg")
    with Image.open(path) as image:
        np.testing.assert_array_equal(read_image(path, SHAPE), np.asarray(image))


def test_large_jpeg_is_close_to_what_pillow_decodes(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize((800, 600), Image.Resampling.BICUBIC)
    jpeg, png = save(photo, tmp_path / "a.jpg"), save(photo, tmp_path / "a.png")
    difference = read_image(jpeg, (32, 32, 3)) - read_image(png, (32, 32, 3)).astype(float)
    assert np.abs(difference).mean() < 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_undone(tmp_path, orientation):
    upright = create_picture()
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Orientation → how a camera stored it.
    stored = upright if orientation == 1 else upright.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(stored, tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read_image(path, SHAPE), np.asarray(upright))


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK"])
def test_colour_modes_become_rgb(tmp_path, mode):
    ending = "tif" if mode == "CMYK" else "png"
    image = read_image(save(create_picture(mode), tmp_path / f"a.{ending}"), SHAPE)
    np.testing.assert_allclose(image, np.asarray(create_picture()), atol=2)


@pytest.mark.parametrize("mode", ["1", "L", "LA"])
def test_grey_becomes_three_equal_channels(tmp_path, mode):
    image = read_image(save(create_picture("L").convert(mode), tmp_path / "a.png"), SHAPE)
    assert (image == image[..., :1]).all()


@pytest.mark.parametrize("mode", ["RGBA", "P", "LA"])
def test_what_is_transparent_is_white(tmp_path, mode):
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    path = tmp_path / "a.png"
    if mode == "P":
        save(Image.new("P", (8, 8), 0), path, transparency=0)
    else:
        save(image.convert(mode), path)
    assert (read_image(path, SHAPE) == 255).all()


def test_half_transparent_is_half_white(tmp_path):
    path = save(Image.new("RGBA", (8, 8), (0, 0, 0, 128)), tmp_path / "a.png")
    np.testing.assert_allclose(read_image(path, SHAPE), 127, atol=1)


@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_keep_their_brightness(tmp_path, channels):
    values = np.linspace(0, 65_535, 64).reshape(8, 8).astype(np.uint16)
    path = save(Image.fromarray(values), tmp_path / "a.png")
    image = read_image(path, (8, 8, channels))
    np.testing.assert_array_equal(image[..., 0], values >> 8)


def test_grey_runs_get_one_channel(tmp_path):
    image = read_image(save(create_picture(), tmp_path / "a.png"), (8, 8, 1))
    np.testing.assert_array_equal(image[..., 0], np.asarray(create_picture("L")))


def test_first_frame_of_an_animation_counts(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, WHITE)]
    path = save(frames[0], tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (read_image(path, SHAPE) == RED).all()


@pytest.mark.parametrize("size", [(27, 9), (9, 27), (270, 90)])
def test_long_side_is_cropped_around_the_centre(tmp_path, size):
    width, height = size
    pixels = np.zeros((height, width, 3), np.uint8)
    third = max(size) // 3
    middle = slice(third, 2 * third)
    pixels[:, middle] = 255
    if height > width:
        pixels[:] = 0
        pixels[middle] = 255
    path = save(Image.fromarray(pixels), tmp_path / "a.png")
    image = read_image(path, (9, 9, 3))
    assert (image[3:6, 3:6] == 255).all()
    assert image.mean() > 200  # Scaling mixes a little of the border in.


def create_png_start(width: int, height: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [header, b"IDAT" + zlib.compress(bytes(1000))]
    packed = [
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        for chunk in chunks
    ]
    return b"".join([b"\x89PNG\r\n\x1a\n", *packed])


@pytest.mark.parametrize("size", [(50_000, 50_000), (12_000, 12_000), (100_001, 1000)])
def test_bomb_is_refused_by_its_header(tmp_path, size):
    path = tmp_path / "bomb.png"
    path.write_bytes(create_png_start(*size))
    with pytest.raises(ImageError, match="pixels"):
        read_image(path, SHAPE)


def test_truncated_file_is_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for ending in ("jpg", "png", "bmp"):
        path = save(Image.fromarray(noise), tmp_path / f"a.{ending}")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(ImageError, match="truncated"):
            read_image(path, SHAPE)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xd8\xff", b"GIF89a"])
def test_what_is_no_image_is_refused(tmp_path, content):
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError):
        read_image(path, SHAPE)


def test_floating_point_is_refused(tmp_path):
    path = save(Image.fromarray(np.zeros((8, 8), np.float32)), tmp_path / "a.tif")
    with pytest.raises(ImageError, match="floating-point"):
        read_image(path, SHAPE)


def test_missing_file_and_folder_are_refused(tmp_path):
    with pytest.raises(ImageError, match="No such file"):
        read_image(tmp_path / "none.png", SHAPE)
    with pytest.raises(ImageError, match="directory"):
        read_image(tmp_path, SHAPE)


@pytest.fixture
def folder(tmp_path):
    for name in ["b.png", "a.JPG", "sub/deep/c.webp", "notes.txt", "sub/labels.csv"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        save(create_picture(), tmp_path / name, format="png")
    os.symlink(tmp_path, tmp_path / "sub" / "loop")
    return tmp_path


def test_folder_means_all_images_in_it_once(folder):
    names = [os.path.relpath(file, folder) for file in find_images(str(folder))]
    assert names == ["a.JPG", "b.png", "sub/deep/c.webp"]


def test_glob_and_single_file(folder):
    assert find_images(f"{folder}/*.png") == [f"{folder}/b.png"]
    os.symlink(folder / "b.png", folder / "sub" / "link.png")
    assert find_images(f"{folder}/**/*.png") == [f"{folder}/b.png", f"{folder}/sub/link.png"]
    assert find_images(f"{folder}/sub/**/c.*") == [f"{folder}/sub/deep/c.webp"]
    assert find_images(f"{folder}/notes.txt") == [f"{folder}/notes.txt"]


def test_brackets_in_a_name_are_a_name(tmp_path):
    path = save(create_picture(), tmp_path / "a[1].png")
    assert find_images(str(path)) == [str(path)]


def test_nothing_found_names_the_remedy(tmp_path):
    with pytest.raises(UserError, match=r"There is no file .*/none.*: give --images"):
        find_images(f"{tmp_path}/none")
    with pytest.raises(UserError, match=r"There is no file .*/\*.png"):
        find_images(f"{tmp_path}/*.png")
    with pytest.raises(UserError, match=r"There is no image in .*: give --images"):
        find_images(str(tmp_path))


def test_read_ahead_keeps_the_order_and_the_errors(tmp_path):
    files = []
    for i in range(7):
        path = tmp_path / f"{i}.png"
        save(Image.new("RGB", (8, 8), (i, i, i)), path) if i != 4 else path.write_text("no image")
        files.append(str(path))
    batches = list(read_ahead(files, SHAPE, 3))
    assert [batch.files for batch in batches] == [files[:3], files[3:6], files[6:]]
    assert [batch.images[:, 0, 0, 0].tolist() for batch in batches] == [[0, 1, 2], [3, 5], [6]]
    errors = [error for batch in batches for error in batch.errors]
    assert [error is None for error in errors] == [True] * 4 + [False] + [True] * 2
    assert list(read_ahead([], SHAPE, 3)) == []


def test_read_ahead_can_be_left_early(tmp_path):
    path = str(save(create_picture(), tmp_path / "a.png"))
    batches = read_ahead([path] * 1000, SHAPE, 10)
    next(batches)
    batches.close()
