"""What a user says about the labels of a folder: the file that has them, or a pattern of names."""

import json
import re
import shlex
import types

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.cli import console
from cls_jax.photos.folder.exchange import import_labels
from cls_jax.photos.folder.options import (
    AUTOMATIC,
    FolderOptions,
    describe_unpacking,
    find_folder,
    find_labels_file,
)
from cls_jax.photos.folder.remedies import (
    describe_inner_folders,
    describe_names,
    propose_from_names,
)
from cls_jax.photos.labeling.photos import open_session
from cls_jax.photos.plan.plan import Request, plan_run
from cls_jax.photos.plan.rules import create_folder_config
from cls_jax.photos.report.page import view_next
from tests.photos.folder.test_odd_folders import put
from tests.photos.helpers import get_labels, make_folder, place, read_layout

NAMES = ["cat/1.png", "cat/2.png", "dog/3.png", "dog/4.png"]
ROWS = "file,label\n1.png,a\n2.png,b\n3.png,a\n"
RIGHT = {"cat/1.png": "a", "cat/2.png": "b", "dog/3.png": "a"}
PETS = [f"images/{name}_{i}.jpg" for name in ("Abyssinian", "great_pyrenees") for i in range(3)]
SITES = [
    f"{site}/{name}/{i}.jpg" for site in ("s1", "s2") for name in ("deer", "fox") for i in (1, 2)
]


@pytest.fixture
def root(tmp_path):
    return make_folder(tmp_path / "album", NAMES)


def take_command(sentence):
    """The options in a command of a sentence, as a shell reads them, and `train` accepts them."""
    words = shlex.split(re.search(r"cls(?:-|_)jax (train .*?) reads", sentence)[1])
    pairs = [
        word.removeprefix("--config.data.") for word in console.parse_arguments(words).overrides
    ]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("where", ["inside", "elsewhere"])
def test_the_named_file_counts_before_all_else(root, tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    folder = root if where == "inside" else tmp_path
    for name in ("x.csv", "y.csv"):
        (folder / name).write_text(ROWS if name == "x.csv" else ROWS.replace("a", "c"))
    typed = "album/x.csv" if where == "inside" else "x.csv"
    labels = find_labels_file(root, typed)
    assert labels == ("x.csv" if where == "inside" else str(tmp_path / "x.csv"))
    assert find_labels_file(root, labels) == labels
    options = FolderOptions(labels=labels)
    assert get_labels(read_layout(root, options).train) == RIGHT
    session = open_session(root, options=options)  # cls-jax label
    assert session._answers.path == root / "labels.csv"
    assert sorted(session.known.class_names) == ["a", "b"]
    words = shlex.split(" ".join(map(shlex.quote, options.to_arguments(root))))
    assert find_labels_file(root, words[1]) == labels


def test_what_is_not_clear_about_a_file_is_asked(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"There is no file x.csv with labels, here or in"):
        find_labels_file(root, "x.csv")
    (root / "x.csv").write_text(ROWS)
    (tmp_path / "x.csv").write_text(ROWS)
    with pytest.raises(UserError, match=r"may be \S+/x.csv or \S+album/x.csv: write one of these"):
        find_labels_file(root, "x.csv")
    assert find_labels_file(root, str(root / "x.csv")) == "x.csv"


def test_a_run_keeps_the_file(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(root, *NAMES)
    (root / "x.csv").write_text(ROWS)
    settings = {"data.labels": "album/x.csv", "model.init": "", "num_steps": 2}
    plan = plan_run(Request("album", settings=settings))
    assert plan.config.data.labels == "x.csv"
    assert plan.summary.class_counts == {"a": 2, "b": 1}


def test_names_that_carry_classes_are_proposed_and_then_read(tmp_path):
    make_folder(tmp_path, PETS)
    with pytest.raises(UserError) as error:
        read_layout(tmp_path)
    assert "('Abyssinian' 3, 'great_pyrenees' 3; 6 of 6 names)" in str(error.value)
    layout = read_layout(tmp_path, **take_command(str(error.value)))
    assert get_labels(layout.train) == {
        name: name.split("/")[1].rpartition("_")[0] for name in PETS
    }
    assert layout.table.endswith(": classes of 6 of 6 files.")


def test_folders_within_sites_are_proposed_and_then_read(tmp_path):
    for top in ("", "train/"):
        root = make_folder(tmp_path / f"x{top}", [f"{top}{name}" for name in SITES])
        with pytest.raises(UserError, match=r"only folders such as .*: if these are") as error:
            read_layout(root)
        options = take_command(str(error.value))
        layout = read_layout(root, **options)
        assert get_labels(layout.train) == {f"{top}{name}": name.split("/")[1] for name in SITES}
        assert len(set(layout.sources.numbers.tolist())) == 2
    # Folders that differ are rather classes within groups.
    other = make_folder(tmp_path / "y", ["pets/cat/1.jpg", "pets/dog/1.jpg", "plants/oak/1.jpg"])
    with pytest.raises(UserError, match=r"or pass the folder whose subfolders are the classes"):
        read_layout(other)


@pytest.mark.parametrize(
    ("names", "counts"),
    {
        "cat.0.jpg cat.1.jpg dog.0.jpg dog.1.jpg": {"cat": 2, "dog": 2},
        "cat1.jpg cat2.jpg dog1.jpg dog2.jpg": {"cat": 2, "dog": 2},
        "cat (1).jpg|cat (2).jpg|dog (1).jpg|dog (2).jpg": {"cat": 2, "dog": 2},
        "1-cat.jpg 2-cat.jpg 3-dog.jpg 4-dog.jpg": {"cat": 2, "dog": 2},
        "sea lion_1.jpg|sea lion_2.jpg|fox_1.jpg|fox_2.jpg": {"sea lion": 2, "fox": 2},
        "IMG_1.jpg IMG_2.jpg DSC_1.jpg DSC_2.jpg": None,
        "P012_03.jpg P012_04.jpg P013_03.jpg P013_04.jpg": None,
        "cat_1.jpg dog_1.jpg owl_1.jpg": None,
        "1.jpg 2.jpg": None,
        "": None,
    }.items(),
)
def test_what_counts_as_a_class_in_a_name(names, counts):
    names = names.split("|") if "|" in names else names.split()
    found = propose_from_names(names)
    assert (found and dict(found[1])) == counts


@pytest.mark.parametrize("name", ["my photos.zip", "x.tar.gz", "x.7z"])
def test_an_archive_in_place_of_a_folder_is_never_opened(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"../../no archive")
    with pytest.raises(UserError, match=f"{path} is an archive: unpack it with `"):
        find_folder(path, "a folder")
    command = describe_unpacking(path)
    target = str(tmp_path / name.partition(".")[0])
    assert str(path) in shlex.split(command)
    assert target in shlex.split(command) or f"-o{target}" in shlex.split(command)
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / name.partition(".")[0]).mkdir()
    assert f"{target}-unpacked" in describe_unpacking(path).replace("'", "")


ALL_OPTIONS = FolderOptions(
    file_column="my file",
    label_column="2",
    layout="splits",
    source_column="site",
    source_pattern="^([^/]+)/",
    labels="my tables/x.csv",
    label_pattern=r"'(.)_\d",
    tags=True,
)


@pytest.mark.parametrize("option", FolderOptions._fields)
def test_commands_for_a_folder_repeat_each_option(tmp_path, option):
    options = AUTOMATIC._replace(**{option: getattr(ALL_OPTIONS, option)})
    words = shlex.join(options.to_arguments(tmp_path))
    config = create_folder_config(str(tmp_path), "fixmatch")
    config.data.update(options._asdict())
    run = types.SimpleNamespace(
        **{"is_folder": True, "class_names": ("a",), "result": {"step": 1}, "method": None},
        **{
            "link_root": str(tmp_path),
            "workdir": tmp_path,
            "suspects": None,
            "dataset": None,
            "labeled": None,
            "label_counts": None,
        },
        config=config,
    )
    assert words in view_next(run)["label"]
    if option not in ("labels", "label_pattern", "source_pattern", "tags"):
        assert words in describe_names(tmp_path, PETS, options)
        assert words in describe_inner_folders(tmp_path, SITES, 0, options)


def test_commands_take_the_options(root, tmp_path, capsys):
    (root / "x.csv").write_text(ROWS)
    for options, label in (
        (["--labels", str(root / "x.csv")], "cat/1.png,a"),
        (["--label-pattern", "^([^/]+)/"], "cat/1.png,cat"),
    ):
        path = tmp_path / f"{label[-1]}.csv"
        console.run(console.parse_arguments(["labels", str(root), "--to", str(path), *options]))
        assert label in path.read_text()
    with pytest.raises(UserError, match=r"There is no file y.csv with labels"):
        console.run(console.parse_arguments(["suggest", str(root), "--labels", "y.csv"]))


def test_a_folder_of_files_for_an_image_each_is_imported(root, tmp_path):
    for i, label in enumerate("aba", 1):
        content = {"item": {"name": f"{i}.png"}, "annotations": [{"name": label, "tag": {}}]}
        place(tmp_path / "export", f"annotations/{i}.json").write_text(json.dumps(content))
    imported = import_labels(root, tmp_path / "export")
    assert imported.num_added == 3
    assert get_labels(read_layout(root).train) | RIGHT == get_labels(read_layout(root).train)
    with pytest.raises(UserError, match=r"cannot be read as labels"):
        import_labels(root, place(tmp_path / "empty", "x").parent)


def test_the_only_table_beside_a_folder_without_labels_is_proposed(tmp_path):
    scans = make_folder(tmp_path / "scans", ["1.png", "2.png"])
    (tmp_path / "GroundTruth.csv").write_text(ROWS)
    command = re.escape(f"pass --labels {shlex.quote(str(tmp_path / 'GroundTruth.csv'))}")
    with pytest.raises(UserError, match=f"if 'GroundTruth.csv' beside this folder .*{command}"):
        read_layout(scans)
    (tmp_path / "other.csv").write_text(ROWS)  # Which one?
    with pytest.raises(UserError, match=r"arrange the images as labeled/<class>/"):
        read_layout(scans)
