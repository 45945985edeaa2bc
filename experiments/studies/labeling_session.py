"""A whole labeling session with a simulated person: what the page says, and whether it is true.

python -m experiments.studies.labeling_session --data FOLDER [--steps 80] [--photos 2000]

FOLDER has one folder per class. For each seed, up to 2,000 of its photos are in a folder without
classes, whose session is the one behind the page. The person answers 40 suggested photos by the
truth. Then the page's sentences are taken: how many are named right, and which photos to look at.
Both are compared with the truth, also after 20 random photos have been checked, and so is what the
page says once the list for 95% has been looked at. With --steps, the
session then trains longer, small images for so many steps, and the sentences are taken again. The
last lines say how often what the page said held, and in how many sessions all of it did.
"""

import argparse
import contextlib
import pathlib
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cls_jax.photos.features.accuracy import MIN_CHECKS
from cls_jax.photos.folder.log import LABEL
from cls_jax.photos.inference.predictor import TRAINED, expect_gain
from cls_jax.photos.inference.run import load
from cls_jax.photos.labeling import views
from cls_jax.photos.labeling.changes import Change
from cls_jax.photos.labeling.classifier import SessionClassifier
from cls_jax.photos.labeling.known import Features, count, get_path, list_paths, list_states
from cls_jax.photos.labeling.next_step import ask, describe_step, find_doubtful
from cls_jax.photos.labeling.photos import load_all, open_session
from cls_jax.photos.labeling.proposals import NUM_ANSWERS
from cls_jax.photos.labeling.session import JAX_THREAD, Session
from cls_jax.photos.labeling.trained import TrainedNetworks
from cls_jax.photos.labeling.training import FINE_TUNE, Training
from cls_jax.runs.folder import read_result
from experiments.paper import grid

_NUM_KEYS = 40
# For a training that two busy cores can do.
_SMALL = {"batch_size": 4, "data.pipeline": "device"}
_TARGETS = (90, 95)  # Percent. The photos for the last one are corrected.
_WAIT_SECONDS = 0.05
_WINDOW = "study"
_INTERVAL = "Intervals of the accuracy that held the truth"


class _Folder(NamedTuple):
    """All photos of the study, with their features."""

    paths: list[pathlib.Path]
    features: Features
    num_photos: int

    def draw(self, seed: int) -> tuple[list[pathlib.Path], Features]:
        """Some of the photos in random order, and their features."""
        readable, frozen, *_ = self.features
        rows = np.random.default_rng(seed).permutation(len(readable))[: self.num_photos]
        chosen = frozen.convert(lambda array: array[rows])
        return [self.paths[readable[row]] for row in rows], Features(np.arange(len(rows)), chosen)


def main() -> None:
    """Prints what the page said and what was true."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder of class folders")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated seeds")
    parser.add_argument("--steps", type=int, default=0, help="of a training, 0 for none")
    parser.add_argument("--pixels", type=int, default=96, help="of the images of a training")
    parser.add_argument("--photos", type=int, default=2000, help="at most, in a session")
    arguments = parser.parse_args()
    paths = sorted(path for path in pathlib.Path(arguments.data).rglob("*") if path.is_file())
    folder = _Folder(paths, load_all(paths), arguments.photos)
    print(grid.describe_provenance(), flush=True)
    held: dict[str, list[bool]] = {}
    sessions = list[bool]()
    for seed in arguments.seeds.split(","):
        print(f"\nSeed {seed}:\n", flush=True)
        said = list[bool]()
        for line in run_session(folder, int(seed), arguments.steps, arguments.pixels):
            print(f"- {line.text}", flush=True)
            for kind, is_held in line.held.items():
                held.setdefault(kind, []).append(is_held)
                said += [is_held] if kind == _INTERVAL else []
        sessions.append(all(said))
    print()
    for kind, values in held.items():
        print(f"{kind}: {sum(values)} of {len(values)}.")
    print(f"Sessions in which all intervals held the truth: {sum(sessions)} of {len(sessions)}.")


class _Said(NamedTuple):
    """A sentence, and what of it is true, by its kind."""

    text: str
    held: Mapping[str, bool] = MappingProxyType({})


def run_session(folder: _Folder, seed: int, num_steps: int, pixels: int) -> Iterator[_Said]:
    """Sentences about one session: what the page said, and what was true."""
    paths, features = folder.draw(seed)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        root, truth = pathlib.Path(place) / "photos", {}
        root.mkdir()
        for i, path in enumerate(paths):
            name = f"IMG_{i:04}{path.suffix.lower()}"
            (root / name).symlink_to(path.resolve())
            truth[name] = path.parent.name
        session = open_session(root)
        session.load(lambda report: features)
        settings = {"num_steps": num_steps, "data.image_size": pixels} | _SMALL
        training = Training(root, [f"--config.{key}={value}" for key, value in settings.items()])
        networks = TrainedNetworks(session, training.find_used_run)
        classifier = SessionClassifier(session, networks)
        began = time.perf_counter()
        for number in range(1, _NUM_KEYS + 1):
            _answer_next(session, truth)
            if number % NUM_ANSWERS == 0:
                _wait(classifier)
        seconds = time.perf_counter() - began
        yield _Said(f"{_NUM_KEYS} answers, {seconds:.0f} s of which were the program's own.")
        yield from _compare(session, classifier, truth)
        for number in range(1, session.draw_sample() + 1):
            _answer_next(session, truth)
            if number % NUM_ANSWERS == 0:
                _wait(classifier)
        yield _Said(f"{MIN_CHECKS} random photos checked.")
        yield from _compare(session, classifier, truth)
        if num_steps:
            yield _train(session, training, networks, classifier, truth)
            yield from _compare(session, classifier, truth)
        yield _look(session, classifier, truth)


def _train(
    session: Session,
    training: Training,
    networks: TrainedNetworks,
    instant: SessionClassifier,
    truth: Mapping[str, str],
) -> _Said:
    """Trains longer, and says what the page did then and what the networks name right.

    Also whether they should predict, and what earlier runs would have let expect of them.
    """
    rows = {row["file"]: row["label"] for row in instant.list_rows()}
    training.start(FINE_TUNE, count(session.known), minutes=1)
    while training.is_running():
        time.sleep(1)
    said = training.describe()
    networks.follow()
    for thread in [one for one in threading.enumerate() if one.name == JAX_THREAD]:
        thread.join()
    if said["phase"] != "done":
        return _Said(f"Training failed: {said['message']}")
    classifier = load(pathlib.Path(said["run"]), trained=True)
    named = {}
    for batch in classifier.read_files(list_paths(session.known)):
        labels = classifier.predict(batch.images).label
        files = [f for f, error in zip(batch.files, batch.errors, strict=True) if error is None]
        named |= {pathlib.Path(file).name: label for file, label in zip(files, labels, strict=True)}
    others = [name for _, name, state in list_states(session.known) if not state.decision]
    before, after = (
        100 * float(np.mean([found[name] == truth[name] for name in others]))
        for found in (rows, named)
    )
    result = read_result(pathlib.Path(said["run"])) or {}
    expected = expect_gain(result.get("labels_weight_graph"), result["step"])
    has_gained, is_used = after > before, result["predictor"] == TRAINED
    return _Said(
        f'Trained. The page: "{said["message"]}" The networks name {after:.1f}% right, and the '
        f"instant classifier {before:.1f}%. Expected by earlier runs: {expected:+.1f} points.",
        {
            "Trainings that gained": has_gained,
            "Losses that were not chosen": has_gained or not is_used,
            "Choices that were right": is_used == has_gained,
            "Choices that earlier runs would have made right": (expected > 0) == has_gained,
        },
    )


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
) -> Iterator[_Said]:
    """What the page says now, and what is true of the table that it offers."""
    described = classifier.describe()
    rows = classifier.list_rows()
    is_right = {row["file"]: row["label"] == truth[row["file"]] for row in rows}
    others = [is_right[row["file"]] for row in rows if row["source"] != LABEL]
    share = 100 * float(np.mean(others))
    estimate = classifier.estimate()
    held: dict[str, bool] = {}
    if estimate and estimate.accuracy_low is not None and estimate.accuracy_high is not None:
        held[_INTERVAL] = estimate.accuracy_low <= share <= estimate.accuracy_high
    where = {None: "", True: ", inside the interval", False: ", outside the interval"}
    holds = where[held.get(_INTERVAL)]
    wrong = len(others) - sum(others)
    yield _Said(f'The page: "{described["accuracy"]}" True: {share:.1f}%{holds}.', held)
    for target in _TARGETS:
        images, early = find_doubtful(session, target, estimate)
        if early:
            yield _Said(f'The page: "{early}"')
            continue
        looked_at = {get_path(session.known, image).name for image in images}
        reached = 100 * float(np.mean([is_right[name] or name in looked_at for name in is_right]))
        found = sum(not is_right[name] for name in looked_at)
        said = (
            f"To get {target}% of all {len(is_right):,} photos right, look at these "
            f"{len(looked_at):,}."
        )
        yield _Said(
            f'The page: "{said}" Then right: {reached:.1f}%. {found:,} of the {wrong:,} wrong ones '
            "are among these.",
            {"Targets that were reached": reached >= target},
        )


def _look(session: Session, classifier: SessionClassifier, truth: Mapping[str, str]) -> _Said:
    """Looks at the list for a target, as one group, until the page says that it is done."""
    asked = list[int]()
    changes = []
    for image in ask(session, _TARGETS[-1], classifier.estimate(), asked):
        photo = views.describe_image(session.known, image)
        label = session.add_class(truth[photo["name"]])
        changes.append(Change(image, LABEL, label, photo["revision"]))
    if changes:
        session.decide(changes, _WINDOW)
    _wait(classifier)
    step = describe_step(session, _TARGETS[-1], classifier.estimate(), asked)
    rows = classifier.list_rows()
    right = 100 * float(np.mean([row["label"] == truth[row["file"]] for row in rows]))
    return _Said(
        f'The page: "{step["sentence"]}" Right: {right:.1f}% of all {len(rows):,}.',
        {"Targets that were reached when it was done": right >= _TARGETS[-1]},
    )


if __name__ == "__main__":
    grid.run_main(main)
