"""What can be resumed is offered, and nothing else."""

import pytest

from cls_jax.photos.labeling.answers import RefusedError
from cls_jax.photos.labeling.training import FINE_TUNE, Training
from tests.photos.labeling.sessions import decide


class _Ended:
    """A process that was stopped."""

    def poll(self):
        return 143


@pytest.fixture
def stopped(session, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    launched = []
    for image, label in enumerate(("cat", "dog", "cat")):
        decide(session, image, label)
    training = Training(folder)

    def launch():
        launched.append(training._command)
        training._process = _Ended()
        training._state |= {"phase": "running", "message": "", "step": 3, "steps": 9}

    monkeypatch.setattr(training, "_launch", launch)
    training.start(FINE_TUNE, session.count()._replace(open=0), 1)  # None is left to check.
    assert training.describe()["phase"] == "stopped"
    return training, launched


@pytest.mark.parametrize("change", ["answer", "none", "skip", "new photo", "gone"])
def test_resume_is_offered_exactly_where_it_works(stopped, session, folder, change):
    training, launched = stopped
    assert training.describe()["can_resume"]
    before = training.describe()
    if change == "answer":
        decide(session, 5, "dog")
    elif change in ("none", "skip"):
        decide(session, 5, "", decision=change)
    elif change == "new photo":
        (folder / "new.png").write_bytes((folder / "IMG_0000.png").read_bytes())
    else:
        (folder / "IMG_0009.png").rename(folder.parent / "IMG_0009.png")
    described = training.describe()
    assert not described["can_resume"]
    assert "have changed since then" in described["message"]
    with pytest.raises(RefusedError, match="have changed since then"):
        training.resume()
    if change in ("answer", "none", "skip"):  # The same labels as before, in a longer table.
        session.undo("w")
    elif change == "new photo":
        (folder / "new.png").unlink()
    else:
        (folder.parent / "IMG_0009.png").rename(folder / "IMG_0009.png")
    assert training.describe() == before
    training.resume()
    assert launched == [training._command] * 2


def test_notes_about_classes_change_nothing_that_is_trained_on(stopped, session):
    training, _ = stopped
    session.describe_class("w", "cat", "has whiskers")
    session.set_key("w", "dog", "7")
    assert training.describe()["can_resume"]
