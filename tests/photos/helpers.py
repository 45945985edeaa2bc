"""What tests of the product share."""

from cls_jax.photos.images.decode import decode_image, open_file


def read_image(path, *shape_and_options):
    """Decodes a file."""
    with open_file(path) as file:
        return decode_image(file, *shape_and_options)
