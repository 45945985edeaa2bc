"""A whole labeling session with a simulated person: what the page says, and whether it is true.

python -m experiments.studies.labeling_session --data FOLDER

FOLDER has one folder per class. For each seed, up to 2,000 of its photos are in a folder without
classes, whose session is the one behind the page. The person answers 40 suggested photos by the
truth. Then the page's sentences are taken: how many are named right, and which photos to look at.
Both are compared with the truth, also after 20 random photos have been checked.
"""

import argparse
import pathlib
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.folder.label_table import LABEL
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.grid import describe_check
from cls_jax.photos.labeling.photos import load_all, open_session
from cls_jax.photos.labeling.session import NUM_ANSWERS, Change, Features, Session
from experiments.paper import grid

_NUM_PHOTOS, _NUM_KEYS = 2000, 40
_TARGETS = (90, 95)  # Percent. The photos for the last one are corrected.
_WAIT_SECONDS = 0.05
_WINDOW = "study"


class _Folder(NamedTuple):
    """All photos of the study, with their features."""

    paths: list[pathlib.Path]
    features: Features

    def draw(self, seed: int) -> tuple[list[pathlib.Path], Features]:
        """Up to 2,000 of the photos in random order, and their features."""
        readable, frozen, _ = self.features
        rows = np.random.default_rng(seed).permutation(len(readable))[:_NUM_PHOTOS]
        chosen = frozen.convert(lambda array: array[rows])
        return [self.paths[readable[row]] for row in rows], Features(np.arange(len(rows)), chosen)


def main() -> None:
    """Prints what the page said and what was true."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of class folders")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated seeds")
    arguments = parser.parse_args()
    paths = sorted(path for path in pathlib.Path(arguments.data).rglob("*") if path.is_file())
    folder = _Folder(paths, load_all(paths))
    print(grid.describe_provenance(), flush=True)
    for seed in arguments.seeds.split(","):
        lines = [f"\nSeed {seed}:\n", *(f"- {line}" for line in run_session(folder, int(seed)))]
        print("\n".join(lines), flush=True)


def run_session(folder: _Folder, seed: int) -> list[str]:
    """Sentences about one session: what the page said, and what was true."""
    paths, features = folder.draw(seed)
    with tempfile.TemporaryDirectory() as place:
        root, truth = pathlib.Path(place) / "photos", {}
        root.mkdir()
        for i, path in enumerate(paths):
            name = f"IMG_{i:04}{path.suffix.lower()}"
            (root / name).symlink_to(path.resolve())
            truth[name] = path.parent.name
        session = open_session(root)
        session.load(lambda report: features)
        classifier = SessionClassifier(session)
        began = time.perf_counter()
        for number in range(1, _NUM_KEYS + 1):
            _answer_next(session, truth)
            if number % NUM_ANSWERS == 0:
                _wait(classifier)
        seconds = time.perf_counter() - began
        said = [f"{_NUM_KEYS} answers, {seconds:.0f} s of which were the program's own."]
        said += _compare(session, classifier, truth)
        for number in range(1, session.draw_sample() + 1):
            _answer_next(session, truth)
            if number % NUM_ANSWERS == 0:
                _wait(classifier)
        said += [f"{MIN_CHECKS} random photos checked.", *_compare(session, classifier, truth)]
        said.append(_correct(session, classifier, truth))
    return said


def _answer_next(session: Session, truth: Mapping[str, str]) -> None:
    photo = views.describe(session, _WINDOW)["next"][0]
    label = session.add_class(truth[photo["name"]])
    session.decide([Change(photo["image"], LABEL, label, photo["revision"])], _WINDOW)


def _wait(classifier: SessionClassifier) -> None:
    """Until the classifier has learned all labels, as a person who looks at the result does."""
    while classifier.describe()["is_fitting"]:
        time.sleep(_WAIT_SECONDS)


def _compare(
    session: Session, classifier: SessionClassifier, truth: Mapping[str, str]
) -> list[str]:
    """What the page says now, and what is true of the table that it offers."""
    described = classifier.describe()
    rows = classifier.list_rows()
    is_right = {row["file"]: row["label"] == truth[row["file"]] for row in rows}
    others = [is_right[row["file"]] for row in rows if row["source"] != LABEL]
    share = 100 * float(np.mean(others))
    estimate = classifier.estimate()
    holds = ""
    if estimate and estimate.accuracy_low is not None and estimate.accuracy_high is not None:
        is_held = estimate.accuracy_low <= share <= estimate.accuracy_high
        holds = f", {'inside' if is_held else 'outside'} the interval"
    wrong = len(others) - sum(others)
    said = [f'The page: "{described["accuracy"]}" True: {share:.1f}%{holds}.']
    for target in _TARGETS:
        check = describe_check(session, target, estimate)
        if check["message"]:
            said.append(f'The page: "{check["message"]}"')
            continue
        looked_at = {session.get_path(image).name for image in check["images"]}
        reached = 100 * float(np.mean([is_right[name] or name in looked_at for name in is_right]))
        found = sum(not is_right[name] for name in looked_at)
        said.append(
            f'The page: "To reach {target}% of the {check["sorted"]:,} sorted photos right, look '
            f'at these {len(looked_at):,}." Then right: {reached:.1f}%. {found:,} of the {wrong:,} '
            "wrong ones are among these."
        )
    return said


def _correct(session: Session, classifier: SessionClassifier, truth: Mapping[str, str]) -> str:
    """Corrects the photos to look at, as one group, and says what is right after learning them."""
    changes = []
    for image in describe_check(session, _TARGETS[-1], classifier.estimate()).get("images", ()):
        photo = views.describe_image(session, image)
        label = session.add_class(truth[photo["name"]])
        changes.append(Change(image, LABEL, label, photo["revision"]))
    session.decide(changes, _WINDOW)
    _wait(classifier)
    rows = classifier.list_rows()
    right = 100 * float(np.mean([row["label"] == truth[row["file"]] for row in rows]))
    return f"Once they are corrected and learned: {right:.1f}% of all {len(rows):,} are right."


if __name__ == "__main__":
    grid.run_main(main)
