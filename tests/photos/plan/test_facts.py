"""What a dry run finds out about the images of a folder."""

import pytest
from PIL import Image

from cls_jax.photos.folder.dataset import summarize_folder
from cls_jax.photos.plan.measure import propose_sources
from tests.photos.features.test_copies import change, create_photos
from tests.photos.helpers import place

CHANGES = "mirrored", "turned", "resized", "cropped"


@pytest.mark.parametrize("end", ["_aug_1", "-1", " (1)", " copy"])
def test_copies_by_name_are_proposed_as_sources_if_they_look_alike(tmp_path, end):
    """Independent photos are called so, too: downloads of one name, and numbered ones."""
    photos, others = create_photos(8), create_photos(8, seed=1)
    for kind in ("copies", "independent"):
        for i, photo in enumerate(photos):
            second = change(photo, CHANGES[i // 2]) if kind == "copies" else others[i]
            for name, image in ((f"{i}.png", photo), (f"{i}{end}.png", second)):
                path = place(tmp_path / kind, f"{('cat', 'dog')[i % 2]}/photo{name}")
                Image.fromarray(image).save(path)
    sentence = propose_sources(summarize_folder(tmp_path / "copies"))
    assert f"'cat/photo0.png' and 'cat/photo0{end}.png' are those of copies: with" in sentence
    (tmp_path / f"copies/cat/photo0{end}.png").write_text("no image")
    assert propose_sources(summarize_folder(tmp_path / "copies")) == sentence
    assert propose_sources(summarize_folder(tmp_path / "independent")) == ""
