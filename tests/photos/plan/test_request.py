"""One request, whether a run is asked for in a terminal or in Python."""

import dataclasses
import inspect

import pytest

import cls_jax
from cls_jax.photos import api
from cls_jax.photos.cli import console
from cls_jax.photos.folder.instant_config import INSTANT_OPTIONS
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.plan import plan
from cls_jax.photos.plan.plan import Request, find_options
from tests.photos.folder.test_choices import ALL_OPTIONS
from tests.photos.helpers import place

# Field → how it is typed, and its value in Python.
TYPED = {
    "workdir": (["--workdir", "w"], "w"),
    "method": (["--method", "uda"], "uda"),
    "start_from": (["--from", "r"], "r"),
    "instant": (["--instant"], True),
    "minutes": (["--minutes", "2"], 2.0),
    "again": (["--again"], True),
    "backbone": (["--backbone", "efficientnet_lite0"], "efficientnet_lite0"),
    "settings": (["--size", "64", "--label-pattern", "(.)"], None),
}
SETTINGS = {"data__image_size": 64, "data__label_pattern": "(.)"}


class AskedError(Exception):
    """What was asked for."""


@pytest.fixture(autouse=True)
def ask(monkeypatch):
    def stop(request):
        raise AskedError(request)

    monkeypatch.setattr(plan, "plan_run", stop)
    monkeypatch.setattr(api, "plan_run", stop)


def ask_in_a_terminal(words):
    with pytest.raises(AskedError) as found:
        console.run(console.parse_arguments(["train", "photos", *words]))
    return found.value.args[0]


def ask_in_python(**options):
    with pytest.raises(AskedError) as found:
        cls_jax.train("photos", **options)
    request = found.value.args[0]
    paths = {name: str(value) for name, value in vars(request).items() if hasattr(value, "parts")}
    return dataclasses.replace(request, **paths)


def test_each_option_is_a_field_of_the_request():
    fields = [field.name for field in dataclasses.fields(Request)]
    assert fields == ["folder", *TYPED]
    parsed = vars(console.parse_arguments(["train", "photos"])).keys()
    of_process = {"verb", "device", "coordinator_address", "num_processes", "process_id"}
    assert parsed - of_process == {*fields, "overrides", "dry_run"} - {"settings"}
    assert list(inspect.signature(cls_jax.train).parameters)[1:] == list(TYPED)


@pytest.mark.parametrize("name", TYPED)
def test_both_ways_ask_for_the_same(name):
    words, value = TYPED[name]
    request = ask_in_a_terminal(words)
    assert request == ask_in_python(**(SETTINGS if name == "settings" else {name: value}))
    assert request != ask_in_a_terminal([]) == ask_in_python() == Request("photos")


@pytest.mark.parametrize("name", FolderOptions._fields)
def test_each_option_of_a_folder_is_a_setting_of_runs(name, tmp_path):
    value = getattr(ALL_OPTIONS, name)
    if name == "labels":
        (path := place(tmp_path, value)).touch()
        value = str(path)
    assert value
    words = FolderOptions(**{name: value}).to_arguments(tmp_path)
    request = ask_in_a_terminal(words)
    assert request == ask_in_python(**{f"data__{name}": value})
    assert getattr(find_options(request.read_settings()), name) == value
    assert f"data.{name}" in INSTANT_OPTIONS
    for verb in ("label", "suggest"):
        parsed = console.parse_arguments([verb, "x", *words])
        assert getattr(parsed, name) == value
