"""Random folders are read as commit 762e45a6 read them, or it asked where they are read now.

`random_folders.txt` has a digest of each outcome there, "?" for a question: first what is trained
on, then what may be labeled, for the seeds from 0 on. A seed gives a layout, tables, spellings,
decisions, and files that have moved.
"""

import hashlib
import json
import os
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder.catalog import read_catalog
from cls_jax.photos.folder.names import fold_class
from cls_jax.photos.folder.options import FolderOptions
from cls_jax.photos.images.files import list_images
from tests.photos.helpers import make_folder

OUTCOMES = pathlib.Path(__file__).with_name("random_folders.txt").read_text().split()
# Seeds of false questions: class folders, or a table with classes, beside a table of ages.
NOT_ASKED = {133, 173, 326, 341}
NUM_TOGETHER = 50
WORDS = ("cat", "dog", "Sea lion", "Größe", "otter")
NUMBERS = ("0", "1", "2", "3", "4")
FILE_HEADERS = ("file", "filename", "image", "image_id", "id", "name", "path", "x", "")
LABEL_HEADERS = ("label", "class", "species", "category", "kind", "dx", "y", "")
NAMES = ("train.csv", "metadata.csv", "meta.csv", "GroundTruth.csv", "labels_train.csv", "list.txt")
EXTRAS: dict[str, Callable[[random.Random, int], str]] = {
    "split": lambda draw, i: draw.choice(("train", "train", "val", "test", "")),
    "is_valid": lambda draw, i: str(i % 4 == 3),
    "patient": lambda draw, i: f"P{i // 3}",
    "site": lambda draw, i: f"s{i % 3}",
    "age": lambda draw, i: str(draw.randrange(3)),
    "width": lambda draw, i: str(640 + i),
    "score": lambda draw, i: f"{draw.random():.3f}",
    "date": lambda draw, i: f"2026-01-{i % 28 + 1:02}",
    "sex": lambda draw, i: draw.choice("mf"),
    "number": lambda draw, i: str(i),
    "file_name": lambda draw, i: f"{i}.png",
}


def write_folder(root: pathlib.Path, seed: int) -> dict[str, str]:
    """Writes a folder of empty images with its tables, and returns the options to read it with."""
    draw = random.Random(seed)
    classes = draw.choice((WORDS, WORDS, NUMBERS))[: draw.randint(2, 4)]
    files = _draw_files(draw, classes)
    others: dict[str, str] = {}
    options: dict[str, str] = {}
    truth = {name: draw.choice(classes) for name in files}
    for name in files:  # What a folder says is mostly what a table says.
        for folder in name.split("/")[:-1]:
            if folder in classes and draw.random() < 0.9:
                truth[name] = folder
    for _ in range(draw.choice((0, 0, 1, 1, 1, 2))):
        _draw_table(draw, files, truth, others, options)
    if draw.random() < 0.15:
        _draw_sidecars(draw, files, truth, others)
    if draw.random() < 0.35:
        _draw_log(draw, files, classes, others)
    if classes[0] == "0" and draw.random() < 0.6:
        names = WORDS[: len(classes)]
        rows = [f"{i},{name}\n" if seed % 2 else f"{name}\n" for i, name in enumerate(names)]
        others[draw.choice(("classes.txt", "names.csv"))] = "".join(rows)
    make_folder(root, _move(draw, files), others)
    for _ in range(draw.choice((0, 0, 0, 0, 1))):
        (root / draw.choice(("empty", "test/empty", "unlabeled"))).mkdir(
            parents=True, exist_ok=True
        )
    if draw.random() < 0.1:
        options["layout"] = draw.choice(("classes", "splits"))
    if draw.random() < 0.08:
        options["source_pattern"] = draw.choice((r"^([^/]+)/", r"(\d)\."))
    if draw.random() < 0.06:
        options["label_pattern"] = draw.choice((r"([A-Za-z ]+)_\d", r"^([^/]+)/"))
    return options


def _draw_files(draw: random.Random, classes: Sequence[str]) -> list[str]:
    """The names of images in one of the usual layouts."""
    numbers = range(draw.randint(4, 14))
    form = draw.choice(("{}.png", "IMG_{:04}.JPG", "{:05}.jpg", "{c}_{}.jpg", "photo {}.png"))
    folders = draw.choice(
        (
            *(("",), ("",), ("images/",), ("images_1/", "images_2/"), ("site1/", "site2/")),
            *(("{c}/",), ("{c}/",), ("train/{c}/", "test/{c}/"), ("train/", "val/", "test/")),
            *(("labeled/{c}/", "unlabeled/"), ("{c}/", "test/{c}/"), ("{c}/", "unlabeled/")),
            *(("site1/{c}/", "site2/{c}/"), ("{c}/", "Train/"), ("{c}/", "no label/")),
            *(("train/{c}/", "valid/", ""), ("train_images/", "test_images/")),
        )
    )
    found = dict[str, None]()
    for i in numbers:
        label = draw.choice(classes)
        folder = draw.choice(folders)
        found[(folder + form).format(i, c=label).replace("{c}", label)] = None
    return sorted(found)


def _spell(draw: random.Random) -> Callable[[str, str], str]:
    """How a table in a folder names a file."""
    return draw.choice(
        (
            lambda name, top: name,
            lambda name, top: os.path.relpath(name, top or "."),
            lambda name, top: os.path.basename(name),
            lambda name, top: os.path.splitext(os.path.basename(name))[0],
            lambda name, top: os.path.splitext(name)[0],
            lambda name, top: f"C:\\data\\album\\{name}".replace("/", "\\"),
            lambda name, top: f"https://x.org/photos/{name}?size=1",
            lambda name, top: name.upper(),
            lambda name, top: f"/data/upload/1/1a2b3c4d-{os.path.basename(name)}",
        )
    )


def _draw_table(
    draw: random.Random,
    files: Sequence[str],
    truth: Mapping[str, str],
    others: dict[str, str],
    options: dict[str, str],
) -> None:
    """A table about some of the files."""
    tops = ["", "", *{name.rpartition("/")[0] for name in files}]
    top = draw.choice(sorted(tops))
    inside = [name for name in files if name.startswith(f"{top}/")] if top else list(files)
    rows = [name for name in inside if draw.random() < 0.9] or inside
    spell = _spell(draw)
    cells = [spell(name, top) for name in rows]
    labels = [_spell_class(draw, truth[name]) for name in rows]
    name = draw.choice((*NAMES, "labels.csv", "labels.csv", "table.json", "table.jsonl"))
    if draw.random() < 0.1:
        cells.append(draw.choice(("gone.png", "gone")))
        labels.append(draw.choice(labels))
    header = [draw.choice(FILE_HEADERS), draw.choice(LABEL_HEADERS)]
    table = [list(pair) for pair in zip(cells, labels, strict=True)]
    if draw.random() < 0.12:  # A column for each class.
        names = sorted(set(labels))
        header[1:] = names
        table = [[cell, *(str(int(label == one)) for one in names)] for cell, label in table]
    elif draw.random() < 0.1:  # No classes: an age, say.
        header[1] = "age"
        table = [[cell, str(draw.randrange(2, 5))] for cell, _ in table]
    for extra in draw.sample(sorted(EXTRAS), draw.choice((0, 0, 1, 2))):
        place = draw.randrange(len(header) + 1)
        header.insert(place, extra)
        for i, line in enumerate(table):
            line.insert(place, EXTRAS[extra](draw, i))
    path = f"{top}/{name}".lstrip("/")
    records = [dict(zip(header, line, strict=True)) for line in table]
    if name.endswith(".jsonl"):
        content = "".join(json.dumps(one) + "\n" for one in records)
    elif name.endswith(".json"):
        content = json.dumps(dict(table) if len(header) == 2 else records)
    else:
        sign = draw.choice((",", ",", ",", ";", "\t"))
        lines = table if not any(header) or draw.random() < 0.05 else [header, *table]
        content = "".join(sign.join(_quote(cell, sign) for cell in line) + "\n" for line in lines)
    others[path] = content
    if draw.random() < 0.12:
        options["labels"] = path
    if draw.random() < 0.1:
        options["label_column"] = draw.choice(header) or "2"
    if draw.random() < 0.05:
        options["file_column"] = draw.choice(header) or "1"
    if draw.random() < 0.05:
        options["source_column"] = draw.choice(header) or "1"


def _quote(cell: str, sign: str) -> str:
    return f'"{cell}"' if sign in cell else cell


def _spell_class(draw: random.Random, name: str) -> str:
    chance = draw.random()
    if chance < 0.9:
        return name
    others = (name.upper(), f" {name}", "", "NA", "?", "unknown", f"{name};dog", f"{name}.0")
    return draw.choice(others)


def _draw_sidecars(
    draw: random.Random, files: Sequence[str], truth: Mapping[str, str], others: dict[str, str]
) -> None:
    """A file about each image."""
    kind = draw.choice((".cls", ".txt", ".json"))
    for name in files:
        label = truth[name] if draw.random() < 0.95 else "cat;dog"
        content = label
        if kind == ".txt":
            content = f"{len(label) % 3} 0.5 0.5 0.1 0.1\n"
        elif kind == ".json":
            content = json.dumps({"shapes": [{"label": label}], "imagePath": name, "flags": {}})
        others[os.path.splitext(name)[0] + kind] = content


def _draw_log(
    draw: random.Random, files: Sequence[str], classes: Sequence[str], others: dict[str, str]
) -> None:
    """The decisions of the labeling page, in a table of their own or below another's rows."""
    before = others.get("labels.csv", "")
    if before and ("," not in before.split("\n")[0]):
        return
    width = before.split("\n")[0].count(",") + 1 if before else 2
    lines = [] if before else ["file,label,decision,time"]
    for i in range(draw.randint(0, 2 * len(files))):
        name = draw.choice(files)
        label = draw.choice((*classes, *classes, WORDS[-1]))
        decision = draw.choice(
            ("label", "label", "label", "check", "check 0.5 0.9 cat", "none", "skip", "undo")
        )
        if decision in ("none", "skip"):
            label = ""
        time = f"2026-01-01T00:{i % 60:02}:00.000000Z"
        cells = [name, label] + [""] * (width - 2) + [decision, time]
        lines.append(",".join(cells))
    others["labels.csv"] = before + "\n".join([*lines, ""])


def _move(draw: random.Random, files: Sequence[str]) -> list[str]:
    """The files as they lie now: some have been moved, renamed or deleted."""
    if draw.random() < 0.75:
        return list(files)
    moved = dict[str, None]()
    for name in files:
        chance = draw.random()
        if chance < 0.1:
            name = f"moved/{os.path.basename(name)}"
        elif chance < 0.2:
            name = name.replace("site1", "site2")
        elif chance < 0.25:
            continue
        moved[name] = None
    return list(moved) or list(files)


def find_outcome(root, options):
    """The digests of labels, parts and sources, each "?" for a question."""
    listing = list_images(root)
    options = FolderOptions(**options)
    found = []
    for see in (see_training, see_session):
        try:
            text = json.dumps(see(read_catalog(root, listing, options)))
            found.append(hashlib.sha256(text.encode()).hexdigest()[:4])
        except UserError:
            found.append("?")
    return found


def see_training(catalog):
    layout = catalog.train()
    parts = layout.train, layout.validation, layout.test
    numbers = layout.sources.numbers.tolist() if layout.sources else None
    return [sorted((file.name, fold_class(k)) for file, k in part) for part in parts], numbers


def see_session(catalog):
    labels = {file: k if k is None else fold_class(k) for file, k in catalog.labelable().items()}
    return sorted(labels.items()), sorted(catalog.sources()[0].items())


@pytest.mark.parametrize("first", range(0, len(OUTCOMES), NUM_TOGETHER))
def test_random_folders_are_read_as_before(tmp_path, first):
    others = {}
    for seed, before in enumerate(OUTCOMES[first : first + NUM_TOGETHER], first):
        root = tmp_path / str(seed) / "album"
        outcome = find_outcome(root, write_folder(root, seed))
        pairs = zip(outcome, before.split("/"), strict=True)
        is_better = all(now == then or (now != "?" and then == "?") for now, then in pairs)
        if "/".join(outcome) != before and not (is_better and seed in NOT_ASKED):
            others[seed] = "/".join(outcome), before
    assert not others
