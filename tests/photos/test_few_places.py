"""Few places decide what others receive as a value."""

import re

from tests.conftest import ROOT

PHOTOS = ROOT / "cls_jax" / "photos"
# A condition on the option, on what a run or a classifier says, or on the value itself.
IN_PYTHON = (
    r"\b(if|and|or|not)\b[^:#]*(\.exclusive\b|\.tags\b(?! *[=[])|\bmost > 1)|\[[a-z.]*\.exclusive\]"
)
IN_JAVASCRIPT = (
    r"(hasTags|has_tags) *[?&]|if \(.*(hasTags|has_tags)|kind\.\w+ (===|\?|&&)|=== (TAGS|CLASSES)"
)


def find(pattern, ending, left_out=()):
    files = (path for path in sorted(PHOTOS.rglob(f"*.{ending}")) if path.name not in left_out)
    return [
        f"{path.relative_to(PHOTOS)}: {line.strip()}"
        for path in files
        for line in path.read_text().splitlines()
        if re.search(pattern, line) and not line.lstrip().startswith(("#", "//"))
    ]


def test_few_places_ask_whether_an_image_has_one_class_or_tags():
    assert len(find(IN_PYTHON, "py", ["kinds.py"]) + find(IN_JAVASCRIPT, "js")) <= 12


def test_probabilities_become_classes_in_one_place():
    """What remains elsewhere chooses no class, or is a program on a device or for other people."""
    inferring = ["decide.py", "infer.py", "heads.py"]
    assert len(find(r"\b(argmax|argmin|softmax)\(", "py", inferring)) <= 8
