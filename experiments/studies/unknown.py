"""Images of no class among unlabeled ones: their cost, and scores that detect them.

    python -m experiments.studies.unknown FOLDER 1 4 25
    python -m experiments.studies.unknown FOLDER,FOREIGN 1 4 25
    python -m experiments.studies.unknown digits 1 4 25

Six classes of the folder are known, drawn with the seed. The photos of the others stay among
the unlabeled and the test images. For each number of labels per known class it prints, over the
seeds 100 to 107, mean and standard error in percent: test accuracies on the known classes, the area
under the ROC curve of several scores of unknown images among the test images and, with photos of
another kind in a folder FOREIGN, of the columns `unknown` and `foreign` for these, and the share of
test images and of these that are called foreign.
"""

import functools
import sys

import numpy as np
import scipy.special
from sklearn.metrics import roc_auc_score

from cls_jax.photos.features.graph import compute_weight
from cls_jax.photos.features.heads import INSTANT_C, PROBE_C, Head, fit_head
from cls_jax.photos.features.infer import infer
from cls_jax.photos.features.neighbors import normalize_rows
from cls_jax.photos.features.relations import Relations
from cls_jax.photos.inference.unknown import collect_images, fit_unknown
from experiments.studies.instant import Photos, draw_labels, open_photos, run_study

_NUM_KNOWN = 6
_SEEDS = range(100, 108)


def _measure(
    photos: Photos, number: int, seed: int, foreign: np.ndarray
) -> dict[str, float | None]:
    rng = np.random.default_rng(seed)
    classes = np.full(photos.truth.max() + 1, -1)
    classes[rng.choice(len(classes), _NUM_KNOWN, replace=False)] = np.arange(_NUM_KNOWN)
    frozen, test = photos.frozen, normalize_rows(photos.frozen.pooled[photos.test])
    train = frozen.convert(lambda rows: rows[photos.train])
    train, x = train._replace(pooled=normalize_rows(train.pooled)), normalize_rows(train.pooled)
    truth = classes[photos.truth[photos.train]]
    test_truth = classes[photos.truth[photos.test]]
    labels = draw_labels(rng, truth, number)
    is_known, is_stranger = truth >= 0, test_truth < 0

    def score(head: Head) -> float:
        right = head.predict(test[~is_stranger]) == test_truth[~is_stranger]
        return float(np.mean(right))

    labeled = np.flatnonzero(labels >= 0)
    probe = fit_head(x[labeled], labels[labeled], _NUM_KNOWN, PROBE_C)
    inferred = infer(Relations(train), labels, _NUM_KNOWN)
    taught = inferred.labels, _NUM_KNOWN, INSTANT_C, inferred.sample_weights
    instant = fit_head(x, *taught)
    known = train.convert(lambda rows: rows[is_known])
    alone = infer(Relations(known), labels[is_known], _NUM_KNOWN)
    without = fit_head(x[is_known], alone.labels, _NUM_KNOWN, INSTANT_C, alone.sample_weights)
    halves = np.array_split(rng.permutation(x.shape[1]), 2)
    networks = [fit_head(x, *taught, np.sort(half)) for half in halves]

    def predict(head: Head) -> np.ndarray:
        return scipy.special.softmax(test @ head.kernel + head.bias, axis=1)

    mean = x.mean(axis=0)
    centers = [normalize_rows(x[labels == k] - mean).mean(axis=0) for k in range(_NUM_KNOWN)]
    cosines = normalize_rows(test - mean) @ normalize_rows(np.stack(centers)).T
    unknown = fit_unknown(x, labels, _NUM_KNOWN)
    images = collect_images(x)
    first, second = map(predict, networks)
    scores = {
        "1 - confidence, instant classifier": 1 - predict(instant).max(axis=1),
        "entropy, instant classifier": 1 - compute_weight(predict(instant)),
        "entropy, linear probe": 1 - compute_weight(predict(probe)),
        "disagreement of two networks": 1 - (first * second).sum(axis=1),
        "distance to the labels' class means": -cosines.max(axis=1),
        "distance to the nearest label": -(test @ x[labeled].T).max(axis=1),
        "linear function of the graph's reach": unknown.apply(test),
        "similarity to the folder's photos": images.compare(test),
    }
    measured: dict[str, float | None] = {}
    if len(foreign):
        both = np.concatenate([test, foreign])
        is_foreign = np.arange(len(both)) >= len(test)
        for name, values in (("unknown", unknown.apply(both)), ("foreign", images.compare(both))):
            measured[f"AUROC of {name} for FOREIGN"] = roc_auc_score(is_foreign, values)
        measured["test images called foreign"] = images.find_foreign(test).mean()
        measured["FOREIGN called foreign"] = images.find_foreign(foreign).mean()
    return {
        "accuracy, linear probe": score(probe),
        "accuracy, instant": score(instant),
        "accuracy, instant, known classes only": score(without),
        "loss by images of no class": score(without) - score(instant),
        **{f"AUROC, {name}": roc_auc_score(is_stranger, values) for name, values in scores.items()},
        **measured,
    }


if __name__ == "__main__":
    folder, _, other = sys.argv[1].partition(",")
    foreign = normalize_rows(open_photos(other, has_partner=False).frozen.pooled) if other else ()
    measure = functools.partial(_measure, foreign=foreign)
    run_study(measure, _SEEDS, [folder, *sys.argv[2:]])
