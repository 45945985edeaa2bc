"""Tags of photos that may have several, from few labels, against one classifier for each tag.

    python -m experiments.studies.tags FOLDER [LABELS …] [--seeds FIRST END]

FOLDER/labels.csv has the columns `file` and `tags`, such as boots;hat. For each number of labeled
photos, drawn at random, it prints the mean average precision on the other photos, with standard
errors over draws: of the inferred tags, and what they gain over logistic regression for each tag
(the last layer, the best C of three on average), and in the first draws over scikit-learn's
LabelSpreading and, with at most 60 labels, over the classes "yes" and "no" inferred for each tag.
Then, in percent, the precision of predicted tags where 90% was asked for, how many of the others
have all tags right, what is stated by the labels and after 20 random checks, and how often the
intervals of these and of each tag's precision and recall hold. Tags without a labeled photo do not
exist.
"""

import argparse
import csv
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.semi_supervised import LabelSpreading

from cls_jax.photos.features.accuracy import MIN_CHECKS, Estimate
from cls_jax.photos.features.extract import extract_features, read_backbone
from cls_jax.photos.features.infer import infer
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.features.tag_accuracy import (
    confide,
    correct_tags,
    estimate_each,
    estimate_tags,
)
from cls_jax.photos.features.tags import InferredTags, choose_thresholds, infer_tags
from cls_jax.photos.folder.kinds import read_sets
from cls_jax.process import prepare_process

_COSTS = 0.001, 0.01, 0.1  # The C of logistic regression.
_NUM_COMPARED = 6  # Draws, with what takes long.
_MAX_INFERRED = 60  # Labels, with two classes for each tag.
_PRECISION = 0.9
_SEEDS = 300, 340  # These draws were used for no choice.
Found = Iterator[tuple[str, float]]


class Drawn(NamedTuple):
    """Photos of which some are labeled."""

    relations: Relations
    truth: np.ndarray  # int8 [B, T], of tags that some labeled photos have and some have not.
    rows: np.ndarray  # The labeled ones.

    @property
    def others(self) -> np.ndarray:
        """The others."""
        return np.setdiff1d(np.arange(len(self.truth)), self.rows)

    def infer(self) -> InferredTags:
        """The tags of all."""
        values = np.full_like(self.truth, -1)
        values[self.rows] = self.truth[self.rows]
        return infer_tags(self.relations, values)

    def score(self, scores_BT: np.ndarray) -> float:
        """The mean average precision on the others."""
        pairs = zip(self.truth[self.others].T, scores_BT[self.others].T, strict=True)
        return 100 * float(np.mean([average_precision_score(*pair) for pair in pairs]))


def open_tags(folder: pathlib.Path) -> tuple[Relations, np.ndarray]:
    """What lies between the photos in a folder, and their tags, int8 [B, T]."""
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = sorted((row["file"], row["tags"]) for row in csv.DictReader(file))
    files = [folder / name for name, _ in rows]
    relations = Relations(extract_features(files, read_backbone()))
    return relations, read_sets([tags for _, tags in rows]).values


def draw(relations: Relations, truth: np.ndarray, number: int, seed: int) -> Drawn:
    """Draws labels, with all tags if a draw of 300 has them."""
    rng = np.random.default_rng((seed, number))
    for _ in range(300):
        rows = np.sort(rng.choice(len(truth), number, replace=False))
        is_known_T = (truth[rows].min(axis=0) == 0) & (truth[rows].max(axis=0) == 1)
        if is_known_T.all():
            break
    others = np.setdiff1d(np.arange(len(truth)), rows)
    return Drawn(relations, truth[:, is_known_T & truth[others].any(axis=0)], rows)


def regress(drawn: Drawn) -> Found:
    """Mean average precisions of logistic regression, in the basis of the labeled photos."""
    x = drawn.relations.features.pooled.astype(np.float32)
    x, labels = x @ np.linalg.qr(x[drawn.rows].T)[0], drawn.truth[drawn.rows]
    for cost in _COSTS:
        models = [LogisticRegression(C=cost, max_iter=2000).fit(x[drawn.rows], y) for y in labels.T]
        yield f"C {cost}", drawn.score(np.stack([m.decision_function(x) for m in models], axis=1))


def compare(drawn: Drawn) -> Found:
    """Mean average precisions of what takes long."""
    x = drawn.relations.features.pooled.astype(np.float32)
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    spread, inferred = [], []
    for y in drawn.truth[drawn.rows].T:
        targets = np.full(len(x), -1)
        targets[drawn.rows] = y
        model = LabelSpreading(kernel="knn", max_iter=100).fit(units, targets)
        spread.append(model.label_distributions_[:, 1])
        if len(y) <= _MAX_INFERRED:
            found = infer(drawn.relations, targets, 2)
            inferred.append(found.probabilities[:, 1])
    yield "label spreading", drawn.score(np.stack(spread, axis=1))
    if inferred:
        yield "two classes", drawn.score(np.stack(inferred, axis=1))


def promise(drawn: Drawn, inferred: InferredTags) -> Found:
    """The precision of tags by thresholds that were chosen for one, and how many have any."""
    says = inferred.probabilities[drawn.others] >= choose_thresholds(inferred, _PRECISION)
    has = drawn.truth[drawn.others] == 1
    for t in range(says.shape[1]):
        yield "promised precision: predicted at all", 100 * says[:, t].any()
        yield "promised precision: recall", 100 * says[has[:, t], t].mean()
        if says[:, t].any():
            yield "promised precision", 100 * has[says[:, t], t].mean()


def judge(name: str, estimate: Estimate | None, true: float) -> Found:
    """What an estimate says of the share of photos with all tags right, and whether it holds."""
    is_stated = estimate is not None and estimate.accuracy is not None
    yield f"{name} is stated", 100 * is_stated
    if is_stated:
        low, high = estimate.accuracy_low, estimate.accuracy_high
        yield f"{name} stated", estimate.accuracy
        yield f"{name} interval holds", 100 * (low <= true <= high)
        yield f"{name} interval's width", high - low


def state(drawn: Drawn, inferred: InferredTags, seed: int) -> Found:
    """What is stated, and what is true."""
    groups = np.arange(len(drawn.truth))
    others, known = drawn.others, inferred.given
    parts = inferred.probabilities, inferred.held_out, known, groups
    p_oT, has_oT = inferred.probabilities[others], drawn.truth[others] == 1
    says_oT = p_oT >= 0.5
    is_right = (says_oT == has_oT).all(axis=1)
    yield "all tags right", 100 * is_right.mean()
    yield "product of confidences", 100 * confide(p_oT).mean()
    yield from judge("by labels:", estimate_tags(*parts), 100 * is_right.mean())
    num_right = (says_oT & has_oT).sum(axis=0)
    for t, figures in enumerate(estimate_each(*parts)):
        counts = {"precision": says_oT[:, t].sum(), "recall": has_oT[:, t].sum()}
        for name, share in figures._asdict().items():
            yield f"{name} is stated", 100 * (share is not None)
            if share is not None and counts[name]:
                true = 100 * num_right[t] / counts[name]
                yield f"{name} interval holds", 100 * (share.low <= true <= share.high)
                yield f"{name} interval's width", share.high - share.low
    checked = np.random.default_rng((seed, 7)).choice(len(others), MIN_CHECKS, replace=False)
    learned = drawn._replace(rows=np.sort(np.append(drawn.rows, others[checked])))
    after = learned.infer()
    estimate = estimate_tags(after.probabilities, after.held_out, after.given, groups)
    if estimate is not None:
        rows = others[checked]
        estimate = correct_tags(estimate, after.held_out[rows], drawn.truth[rows])
    says, truth = after.probabilities[learned.others] >= 0.5, drawn.truth[learned.others]
    yield from judge("after checks:", estimate, 100 * (says == truth).all(axis=1).mean())


def describe(values: list[float]) -> str:
    """Mean and standard error."""
    return f"{np.mean(values):5.1f} ± {np.std(values) / max(len(values) - 1, 1) ** 0.5:.1f}"


def main() -> None:
    """Runs the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("labels", type=int, nargs="*", default=[20, 60, 200])
    parser.add_argument("--seeds", type=int, nargs=2, default=_SEEDS)
    arguments = parser.parse_args()
    prepare_process()
    relations, truth = open_tags(arguments.folder)
    for number in arguments.labels:
        found: dict[str, list[float]] = {}
        for seed in range(*arguments.seeds):
            drawn = draw(relations, truth, number, seed)
            inferred = drawn.infer()
            values = [("mean average precision", drawn.score(inferred.probabilities))]
            values += [*regress(drawn), *promise(drawn, inferred), *state(drawn, inferred, seed)]
            if seed < arguments.seeds[0] + _NUM_COMPARED:
                values += compare(drawn)
            for name, value in values:
                found.setdefault(name, []).append(value)
        best = max((f"C {cost}" for cost in _COSTS), key=lambda name: np.mean(found[name]))
        for name in (best, "label spreading", "two classes"):
            if name not in found:
                continue
            pairs = zip(found["mean average precision"], found[name], strict=False)
            found[f"gain over {name}"] = [ours - theirs for ours, theirs in pairs]
        for name, measured in found.items():
            print(f"{number:3}  {name:34} {describe(measured)}", flush=True)


if __name__ == "__main__":
    main()
