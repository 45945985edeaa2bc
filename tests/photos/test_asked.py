"""Few places ask whether an image has one class or tags: what differs is a value for others."""

import re

from tests.conftest import ROOT

PHOTOS = ROOT / "cls_jax" / "photos"
# A condition on the option, on what a run or a classifier says, or on the value itself.
IN_PYTHON = re.compile(
    r"\b(if|and|or|not)\b[^:#]*(\.exclusive\b|\.tags\b(?! *[=[])|\bmost > 1)|\[[a-z.]*\.exclusive\]"
)
IN_JAVASCRIPT = re.compile(
    r"(hasTags|has_tags) *[?&]|if \(.*(hasTags|has_tags)|kind\.\w+ (===|\?|&&)|=== (TAGS|CLASSES)"
)


def find(pattern, ending, left_out=()):
    files = (path for path in sorted(PHOTOS.rglob(f"*.{ending}")) if path.name not in left_out)
    return [
        f"{path.relative_to(PHOTOS)}: {line.strip()}"
        for path in files
        for line in path.read_text().splitlines()
        if pattern.search(line) and not line.lstrip().startswith(("#", "//"))
    ]


def test_few_places_ask_whether_there_are_tags():
    assert len(find(IN_PYTHON, "py", ["kinds.py"]) + find(IN_JAVASCRIPT, "js")) <= 12
