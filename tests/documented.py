"""The commands in the documentation's fences: which are run, with what setup, and which are not.

A page cannot promise what does not run: `tests/photos/cli` parses every command, and
`make doors` runs it with its own text, and options behind it that make it small.
"""

import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.M | re.S)
_PROGRAMS = r"(cls-jax|python|pip|make|tfds|srun|ssh|docker|export|source)\b"

# What a command matches → why nothing runs it.
NOT_RUN = {
    r"^pip ": "each installation of `make doors` is one of these",
    r"^make ": "continuous integration calls make",
    r"^source ": "the environments of `make doors` are on the path",
    r"^(tfds|srun) |/shared/|coordinator": "needs ImageNet and a cluster",
    r"^(ssh|docker|export) ": "for another machine",
    r"(cifar10|stl10|svhn).py:": "needs the dataset",
    r"--backbone hf:": "downloads weights",
    r"--source-": "the photos have no sources, see `tests/photos/folder/test_sources.py`",
    r"--label(s|-pattern) ": "class folders suffice, see `tests/photos/folder/test_choices.py`",
    r"folder.py:~": "as the longer command of docs/finetuning.md",
    r"packed": "in the environment of the extra shards",
    r"^cls-jax label": "answered as a browser does, see `tests/doors.py`",
}
SMALL_NETWORK = ["--config.model.depth=10", "--config.data.randaugment_ops=0"]
# Of EfficientNet, only the last stage and the head are trained.
SMALL_BACKBONE = ["--size", "64", "--config.optimizer.frozen_stages=6"]
SMALL_BACKBONE += ["--config.data.randaugment_ops=0"]
SMALL = ["--config.num_steps=2", "--config.data.randaugment_ops=0"]
SMALL += ["--config.batch_size=2", "--config.mu=1"]
FROZEN = ["--config.data.image_size=64", "--config.optimizer.frozen_stages=6"]
# What a command matches → options that make it small. The first that matches counts.
SMALLER = {
    r"--instant": [],
    r"--dry-run": SMALL_BACKBONE,
    # Which other pages call runs/trained.
    r"^cls-jax train": ["--steps", "2", *SMALL_BACKBONE, "--workdir", "runs/trained"],
    r"npz.py:": SMALL,
    r"folder.py:photos": [*SMALL, *FROZEN, "--config.optimizer.warmup_steps=0"],
    r"^python main.py --config": ["--config.num_steps=2", *SMALL_NETWORK],
}  # fmt: skip


class Documented(NamedTuple):
    """A command of a page."""

    page: str
    text: str

    @property
    def reason(self) -> str | None:
        """Why it is not run, or None."""
        return next((why for key, why in NOT_RUN.items() if re.search(key, self.text)), None)

    @property
    def smaller(self) -> list[str]:
        """Options that make it small."""
        return next((more for key, more in SMALLER.items() if re.search(key, self.text)), [])


def find_commands() -> list[Documented]:
    """All commands of all pages, in the order in which they are read."""
    found = []
    for page in PAGES:
        for language, fence in _FENCE.findall(page.read_text("utf-8")):
            if language:
                continue
            for line in fence.replace("\\\n", " ").splitlines():
                text = " ".join(re.sub(r"\s#.*", "", line).split())
                if re.match(_PROGRAMS, text):
                    found.append(Documented(str(page.relative_to(ROOT)), text))
    return found
