"""A classifier in several threads, in a forked process, and pickled for others."""

import concurrent.futures
import multiprocessing
import os
import pickle
import shutil
import warnings

import numpy as np
import pytest

from cls_jax.errors import UserError
from cls_jax.photos import api
from cls_jax.photos.inference.run import load

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 1), np.uint8)


def test_threads_predict_the_same_as_one(classifier):
    expected = classifier.predict(IMAGES).probabilities

    def predict(count):
        return classifier.predict(IMAGES[:count]).probabilities

    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        counts = [1, 40, 7, 3, 40, 1, 20, 2] * 3
        for count, found in zip(counts, executor.map(predict, counts), strict=True):
            np.testing.assert_allclose(found, expected[:count], rtol=1e-5)


def run_in_fork(function):
    """The UserError of a function in a forked process, or what else became of it."""
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()

    def report():
        try:
            function()
        except UserError as error:
            said.put(str(error))

    process = context.Process(target=report)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX and Python warn of forks.
        process.start()
    process.join(60)
    process.kill()
    return "nothing" if said.empty() else said.get()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
def test_a_forked_process_says_why_it_cannot_compute(classifier, trained_run):
    for function in (
        lambda: classifier.predict(IMAGES),
        lambda: load(trained_run),
        lambda: api.train("photos"),
    ):
        assert "start workers with 'spawn'" in run_in_fork(function)
    assert classifier.predict(IMAGES[:1]).label.shape == (1,)  # This process goes on.


def test_a_pickled_classifier_is_its_folder(classifier, run_copy, tmp_path, monkeypatch):
    expected = classifier.predict(IMAGES)
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(load("run"))
    assert len(pickled) < 1000
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    opened = pickle.loads(pickled)
    assert opened.workdir == run_copy
    np.testing.assert_array_equal(opened.predict(IMAGES).probabilities, expected.probabilities)
    monkeypatch.setattr(type(classifier), "compute_fingerprint", lambda self: "of other weights")
    with pytest.raises(UserError, match=r"run has changed since it was pickled"):
        pickle.loads(pickled)
    shutil.rmtree(run_copy)
    with pytest.raises(UserError):
        pickle.loads(pickled)
