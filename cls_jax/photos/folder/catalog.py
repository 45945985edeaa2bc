"""A folder of images as everybody sees it: its files, their labels and parts, and where from.

Training, the labeling page, suggestions, evaluation, exports and packed folders open the same
catalog. Labels are those of `labels.csv`, on top of class folders or tables of other programs. No
image is opened here.
"""

import array
import dataclasses
import functools
import pathlib
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from cls_jax.errors import UserError
from cls_jax.io import write_count
from cls_jax.photos.folder.class_names import ClassNames, find_class_names
from cls_jax.photos.folder.index import FileIndex
from cls_jax.photos.folder.judge import (
    Question,
    choose,
    compare,
    describe_choice,
    join_alike,
    judge,
)
from cls_jax.photos.folder.label_table import (
    LABELS_CSV,
    LabelTable,
    is_begun_here,
    read_label_table,
    read_text,
)
from cls_jax.photos.folder.layout import PARTS, Layout, Rows
from cls_jax.photos.folder.log import NO_MARKS, FileMarks, choose_spellings, start
from cls_jax.photos.folder.log import fold as fold_rows
from cls_jax.photos.folder.names import (
    fold,
    fold_class,
    may_mean_unlabeled,
    means_unlabeled,
    resemble,
)
from cls_jax.photos.folder.options import AUTOMATIC, CLASSES, FolderOptions
from cls_jax.photos.folder.propose.folders import (
    find_splits,
    propose_folders,
    propose_labeled,
)
from cls_jax.photos.folder.propose.names import (
    read_pattern,
)
from cls_jax.photos.folder.propose.tables import (
    collect_labels,
    list_candidates,
    propose_sidecars,
    propose_tables,
    read_chosen,
)
from cls_jax.photos.folder.reading import (
    HELD_OUT,
    NO_CLASS_NAME,
    SORTED,
    Fault,
    Folder,
    Reading,
    join_readings,
)
from cls_jax.photos.folder.remedies import (
    describe_class_folders,
    describe_missing,
    describe_unnamed,
)
from cls_jax.photos.folder.sources import (
    Sources,
    describe_shared,
    find_sources,
    number_sources,
)
from cls_jax.photos.images.files import Listing, SkippedFile, list_images

_MAX_COMPARED = 1_000  # Files about an image each that are compared with its folder.
_CHECK = re.compile(r"\b(check|none) [\d.]")  # In a table.
_FOREIGN = -2  # A class without training images.


def find_table(listing: Listing) -> str | None:
    """The name of the label table, ignoring case. None if there is none.

    Raises a UserError if there are several.
    """
    names = [name for name in listing.others if fold(name) == LABELS_CSV]
    if len(names) > 1:
        _refuse(f"The folder has {' and '.join(map(repr, names))}: remove one of them.")
    return names[0] if names else None


def list_tables(listing: Listing) -> list[str]:
    """The files at the top of a folder that may have labels, labels.csv first.

    Raises a UserError as `find_table` does.
    """
    table = find_table(listing)
    others = [name for name in list_candidates(listing) if "/" not in name]
    return [table, *others] if table else others


def _is_unicode(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _refuse(sentence: str | None) -> None:
    """Raises a UserError if there is something to say."""
    if sentence:
        raise UserError(sentence)


@dataclasses.dataclass(frozen=True)
class Catalog:
    """The images of a folder, and what is known of them."""

    folder: Folder  # With the options that labels.csv is read with.
    base: Reading  # Labels without those of labels.csv.
    table_name: str | None  # Of labels.csv, which may be written otherwise.
    table: LabelTable  # labels.csv, empty without one.
    names: ClassNames  # Of classes that have numbers.
    warnings: Sequence[str] = ()  # About images with other classes in tables than by folder.
    fault: Fault | None = None  # Of a table that may have labels, which training must not miss.

    @property
    def table_path(self) -> pathlib.Path:
        """Where labels.csv is, or will be."""
        return self.folder.root / (self.table_name or LABELS_CSV)

    def list_base(self) -> dict[str, str]:
        """Image → class, without labels.csv."""
        return {name: self.names.get(label) for name, label in self.base.list_labels().items()}

    @functools.cached_property
    def splits(self) -> Mapping[str, str]:
        """Folder → its contents. Where no image has a class, folders called train are not one."""
        splits = self.base.splits
        is_sorted = self.base.labels or self.base.origin or "train" in splits.values()
        return splits if is_sorted else find_splits(self.folder.listing, self.folder.options)

    def has_part(self, part: str) -> bool:
        """Whether a folder or a row of a table is for a part of the data."""
        return part in (*self.splits.values(), *self.reading.parts.values())

    @functools.cached_property
    def reading(self) -> Reading:
        """What all of the folder says of its images, with the names of classes."""
        found, names = self.base, self.names
        if self.table_name is not None:
            own = collect_labels(self.table)
            found = join_readings([found, own]) if found.origin else self._add_folders(own)
        if names.names:
            labels = {k: names.get(v) if v else v for k, v in found.labels.items()}
            found = found._replace(labels=labels)
        return found._replace(
            warnings=[*found.warnings, *filter(None, [names.warning])],
            sentence=" ".join(filter(None, [found.sentence, names.sentence])),
        )

    def _add_folders(self, own: Reading) -> Reading:
        """The reading by labels.csv, with the classes that folders give to other images."""
        base, shown = self.base, self.table.format.name
        warnings = list(own.warnings)
        rest = [name for name in base.labels if name not in own.labels]
        if rest and "train" not in base.splits.values():
            images_are = write_count(
                len(rest),
                f"image without a row in {shown} is labeled by its folder",
                f"images without a row in {shown} are labeled by their folders",
            )
            warnings.append(
                f"{images_are}, such as {rest[0]!r}: move those without a label to unlabeled/."
            )
        if not any(row.decision for row in self.table.rows):
            warnings += _compare_with_folders(shown, self.folder.listing, base, own)
        return own._replace(labels={**base.labels, **own.labels}, warnings=warnings)

    def _find_part(self, name: str) -> str | None:
        """The part of the data by the folder of an image, or by the row of a table."""
        top, sign, _ = name.partition("/")
        by_folder = self.splits.get(top) if sign else None
        return by_folder if by_folder in HELD_OUT else self.reading.parts.get(name)

    def list_labelable(self) -> list[str]:
        """The images that a person may label: none for testing or validation.

        Names that are not Unicode are left out, since a table cannot contain them.
        """
        names = filter(_is_unicode, self.folder.listing.files.names())
        return [name for name in names if self._find_part(name) not in HELD_OUT]

    def labelable(self) -> dict[str, str | None]:
        """Image → class of those that a person may label.

        It is "" without a label, and None for an image of no class, or one that was skipped.
        """
        labels = self.reading.labels
        return {name: labels.get(name, NO_CLASS_NAME) for name in self.list_labelable()}

    def start_marks(self) -> FileMarks:
        """The marks of the images without labels.csv.

        Those for testing or validation have a class, too: one that is renamed is so there as well.
        """
        names = list(self.folder.listing.files.names())
        base = self.list_base()
        for name in names:
            top, *rest = name.split("/", 2)
            if len(rest) > 1 and self.splits.get(top) in HELD_OUT:
                base[name] = self.names.get(rest[0])
        # No answer about the others could be saved.
        base = {name: base[name] for name in filter(_is_unicode, base)}
        held_out = {name for name in names if self._find_part(name) in HELD_OUT}
        rivals = {name: self.names.get(rival) for name, rival in self.base.rivals.items()}
        return start(base, held_out, rivals)

    def read_marks(self) -> FileMarks:
        """The marks of the images by all that is in the folder."""
        return fold_rows(self.names.name_rows(self.table.rows), self.start_marks(), self.table.find)

    def sources(self) -> tuple[dict[str, str], str]:
        """Image → what it comes from, as far as anything says it, and what does, as a column.

        Raises a UserError as `find_sources` does.
        """
        if pattern := self.folder.options.source_pattern:
            names = list(self.folder.listing.files.names())
            return find_sources(names, pattern), f"the pattern {pattern!r:.100}"
        found = self.reading
        return dict(found.sources), f"the column {found.source_origin}" if found.sources else ""

    def train(self) -> Layout:
        """The images to train on, and those that are held out.

        Raises a UserError without two classes that all have images, or if a table that may have
        labels cannot be read.
        """
        folder, found, splits = self.folder, self.reading, self.base.splits
        files = folder.listing.files
        _refuse(self.fault and self.fault.sentence)
        read = {*self.base.files, self.names.file, self.table_name or ""}
        skipped = [*folder.listing.skip_others(read), *found.skipped]
        warnings = [*found.warnings, *self.warnings]
        table = self.table_name or self.base.origin  # Without one, folders have the classes.
        _refuse(describe_unnamed(folder, table, found))
        columns, classes = self._number_classes(table, skipped)
        places, labels = columns["train"]
        if not table:
            labeled = [file.name for file in files.take(places[labels > 0])]
            _refuse(describe_class_folders(folder, splits, labeled, skipped))
        names = _name_classes([classes[k] for k in np.unique(labels) if k], warnings)
        if len(names) < 2:
            _refuse(describe_missing(folder, names.values(), splits, table, skipped))
        class_names = tuple(sorted(names.values()))
        warnings += self._list_doubtful(class_names, table)
        index = {folded: class_names.index(name) for folded, name in names.items()} | {"": -1}
        known = np.array([index.get(fold_class(name), _FOREIGN) for name in classes], np.int32)
        rows = {}
        for part, (places, labels) in columns.items():
            is_foreign = known[labels] == _FOREIGN
            if is_foreign.any():
                foreign = [classes[k] for k in np.unique(labels[is_foreign])]
                warnings.append(
                    f"{part}/ has {write_count(len(foreign), 'class', 'classes')} that no labeled "
                    f"image has, such as {min(foreign)!r}: their images are left out."
                )
                reason = f"a {part} image of a class without labeled images"
                skipped += [(file.name, reason) for file in files.take(places[is_foreign])]
            # Labeled before unlabeled.
            order = np.argsort(known[labels] == -1, kind="stable")
            order = order[~is_foreign[order]]
            rows[part] = Rows(files, places[order], known[labels[order]], class_names)
        sources, shared = self._compare_sources(rows)
        warnings += shared
        return Layout(
            class_names=class_names,
            train=rows["train"],
            validation=rows["validation"],
            test=rows["test"],
            skipped=skipped,
            warnings=warnings,
            table=found.sentence,
            sources=sources,
        )

    def _compare_sources(self, rows: Mapping[str, Rows]) -> tuple[Sources | None, list[str]]:
        """The sources of training images, if anything says them, and warnings about shared ones."""
        of_files, origin = self.sources()
        if not of_files:
            return None, []
        numbers = number_sources((file.name for file, _ in rows["train"]), of_files)
        of_parts = {part: [of_files.get(file.name, "") for file, _ in rows[part]] for part in rows}
        known = of_parts.pop("train")
        shared = [describe_shared(known, sources, part) for part, sources in of_parts.items()]
        return Sources(numbers, origin), list(filter(None, shared))

    def _number_classes(
        self, table: str, skipped: list[SkippedFile]
    ) -> tuple[dict[str, list[np.ndarray]], list[str]]:
        """The images of each part as places and numbers of classes, int [B], by folder or `table`.

        Also the classes by number, in order of appearance, after "" for none.
        """
        splits = self.base.splits
        base = next((name for name, kind in splits.items() if kind == "train"), "")
        find_place = functools.partial(_find_place, splits, base)
        if table:
            find_place = functools.partial(_find_place_by_table, splits, self.reading, table)
        parts = {part: (array.array("q"), array.array("i")) for part in PARTS}
        numbers = {NO_CLASS_NAME: 0}
        for place, name in enumerate(self.folder.listing.files.names()):
            part, label = find_place(name)
            if part:
                places, labels = parts[part]
                places.append(place)
                labels.append(numbers.setdefault(self.names.get(label), len(numbers)))
            else:
                skipped.append((name, label))
        columns = {part: [np.array(column) for column in both] for part, both in parts.items()}
        return columns, list(numbers)

    def _list_doubtful(self, class_names: Sequence[str], table: str) -> list[str]:
        """A warning about each class whose name may mean that there is no label."""
        remedy = f"empty these cells of {table}" if table else "rename its folder to 'unlabeled'"
        if self.folder.options.label_pattern:
            remedy = "change --label-pattern"
        return [
            f"{name!r} counts as a class: if it means that there is no label, {remedy}."
            for name in class_names
            if may_mean_unlabeled(name)
        ]


def read_catalog(
    root: pathlib.Path, listing: Listing, options: FolderOptions = AUTOMATIC
) -> Catalog:
    """Reads what lies in a folder beside its images.

    What the user chooses in the `options` counts before class folders and all other tables. What
    other programs left beside the images counts where neither class folders nor rows of other
    programs in labels.csv do. Raises a UserError if the folder or labels.csv can be read in several
    ways and the `options` do not say how, or if labels.csv or what the user chooses cannot be read.
    """
    name = find_table(listing)
    folder = Folder(root, listing, FileIndex(listing.files, root), options)
    is_begun = name is None or is_begun_here(root / name)
    found, fault, warnings = _choose(folder, name, is_begun)
    if isinstance(found, Reading) and found.origin:
        found = found._replace(splits=find_splits(listing, options))
        # The columns are theirs.
        options = options._replace(file_column="", label_column="", source_column="")
    table = LabelTable([]) if name is None else read_label_table(root / name, folder.files, options)
    is_own = not table.rows or bool(table.rows[0].decision)
    if not is_own and (isinstance(found, Question) or not found.origin):
        found = propose_labeled(listing, options)
        named = found.labels.keys() | set(map(table.find, table.rows))
        warnings += _count_unused(table.format.name, named, folder)
    if isinstance(found, Question):
        raise UserError(found.write(root))
    rows = (row.label for row in table.rows if not row.decision)
    labels = {*found.list_labels().values(), *rows} - {""}
    tables = {*found.files, *filter(None, [name])}
    return Catalog(
        folder=folder._replace(options=options),
        base=found,
        table_name=name,
        table=table,
        names=find_class_names(root, listing, labels, tables),
        warnings=warnings,
        fault=fault if name is None else None,
    )


def read_checked(root: pathlib.Path, options: FolderOptions) -> FileMarks:
    """The marks of a folder's images if some of them are checks, and otherwise none.

    Raises a UserError as `read_catalog` does.
    """
    listing = list_images(root)
    name = find_table(listing)
    if name is None or not _CHECK.search(read_text(root / name)):
        return NO_MARKS
    return read_catalog(root, listing, options).read_marks()


def _choose(
    folder: Folder, name: str | None, is_begun: bool
) -> tuple[Reading | Question, Fault | None, list[str]]:
    """The reading without the label table called `name`, which may be begun by `cls-jax label`.

    Also what is wrong with a better one, and warnings about images with other classes in tables.
    """
    options = folder.options
    if options.label_pattern or options.labels not in ("", name):
        chosen = _read_chosen(folder, "" if is_begun else name or "")
        _refuse(chosen.fault and chosen.fault.sentence)
        if options.label_pattern:
            return chosen, None, []
        added = _add_labeled(chosen, folder)
        return added, None, list(_count_unused(added.origin, added.labels, folder))
    folders, *others = propose_folders(folder.listing, options)
    if others:
        return Question(folders, others[0]), None, []
    if not is_begun or options.labels:
        return folders, None, []
    if SORTED not in folders.evidence:
        found, fault = _choose_best(folders, folder)
        return found, fault, []
    if name is not None or options.layout == CLASSES:
        return folders, None, []
    found, warnings = _compare_others(folders, folder)
    return found, None, warnings


def _add_labeled(chosen: Reading, folder: Folder) -> Reading:
    """A reading with the labels of labeled/<class>/, too, as labels.csv adds to them."""
    labels = dict[str, str | None](propose_labeled(folder.listing, folder.options).list_labels())
    for image, label in chosen.labels.items():
        labels[image] = labels.get(image, label) if label == NO_CLASS_NAME else label
    return chosen._replace(labels=labels)


def _count_unused(table: str, named: Collection[str | None], folder: Folder) -> Iterator[str]:
    """A warning about images in class folders that a table does not name, if there are any."""
    folders, *others = propose_folders(folder.listing, folder.options)
    splits = find_splits(folder.listing, folder.options)
    held_out = {top for top, kind in splits.items() if kind in HELD_OUT}
    new = [image for image in folders.list_labels() if image not in named]
    unused = [image for image in new if image.partition("/")[0] not in held_out]
    if SORTED in folders.evidence and unused and not others:
        are = write_count(len(unused), "image in a folder is", "images in folders are")
        yield (
            f"{are} unlabeled, such as {min(unused)!r:.200}, since {table} does not name "
            f"{'it' if len(unused) == 1 else 'them'}: if the folders are classes, move them into "
            "labeled/."
        )


def _read_chosen(folder: Folder, table: str) -> Reading:
    """The labels that the user chooses with a file or a pattern.

    Raises a UserError if they contradict each other, or a `table` of another program that is called
    labels.csv.
    """
    options = folder.options
    option = "--label-pattern" if options.label_pattern else f"--labels {options.labels}"
    if options.labels and options.label_pattern:
        raise UserError("--labels and --label-pattern both say where the classes are: remove one.")
    if table:
        raise UserError(
            f"{table} has labels, too: rename it, for example to old_{LABELS_CSV}, to use {option}."
        )
    if options.labels:
        return read_chosen(folder)
    splits = find_splits(folder.listing, options)
    return read_pattern(folder.listing.files.names(), options.label_pattern, splits)


def _choose_best(folders: Reading, folder: Folder) -> tuple[Reading | Question, Fault | None]:
    """The best reading by folders and tables, and what is wrong with a better one."""
    tables = join_alike([*propose_tables(folder), *propose_sidecars(folder)])
    readable = [one for one in tables if one.labels or not one.fault]
    best = max([*tables, folders], key=judge)
    return choose([folders, *readable]), best.fault


def _compare_others(folders: Reading, folder: Folder) -> tuple[Reading | Question, list[str]]:
    """Class folders, or a question, and warnings about images with other classes in tables.

    The same for files about an image each. What cannot be read contradicts nothing.
    """
    warnings = list[str]()
    for kind in propose_tables(folder), propose_sidecars(folder, most=_MAX_COMPARED):
        readable = [one for one in join_alike(kind) if one.labels]
        other = choose(readable) if readable else None
        if isinstance(other, Reading):
            found, warning = compare(folders, other)
            if isinstance(found, Question):
                return found, warnings
            warnings += filter(None, [warning])
            new = [image for image in other.list_labels() if not folders.labels.get(image)]
            if new and "*" not in other.origin:
                images = write_count(len(new), "unlabeled image", "unlabeled images")
                warnings.append(
                    f"{other.origin} has classes of {images}, such as {min(new)!r:.200}, and is "
                    f"not read: to use it, {describe_choice(folder.root, other.origin)}."
                )
    return folders, warnings


def _compare_with_folders(
    table: str,
    listing: Listing,
    by_folder: Reading,
    found: Reading,
) -> list[str]:
    """A warning about images in folders that are called as other classes than a table's."""
    fold_once = functools.cache(fold_class)
    classes = {fold_once(label) for label in found.labels.values() if label}
    others = []
    for name in listing.files.names():
        parts = name.split("/")
        folder = fold_once(parts[-2]) if len(parts) > 1 else ""
        if folder not in classes or by_folder.splits.get(parts[0], "train") != "train":
            continue
        label = found.labels.get(name)
        others += [name] if label and fold_once(label) != folder else []
    if not others:
        return []
    have = write_count(len(others), "image has", "images have")
    where = f"in {table} than by its folder, such as {others[0]!r}: {table} counts."
    return [f"{have} another class {where}"]


def _find_place(splits: Mapping[str, str], base: str, name: str) -> tuple[str, str]:
    """The part and the class of a file by its folders, or "" and the reason to skip it.

    `base` is the folder with the class folders, "" if these are at the top.
    """
    top, *rest = name.split("/", 2)
    kind = splits.get(top, "") if rest else ""
    inner = rest[0] if len(rest) > 1 else ""
    is_aside = means_unlabeled(inner)
    if kind == "unlabeled" or (kind == "train" and is_aside):
        return "train", NO_CLASS_NAME
    if kind and inner:
        return ("", f"a {kind} image without a class") if is_aside else (kind, inner)
    if kind in HELD_OUT:
        return "", f"a {kind} image outside of a class folder"
    if rest and base and not kind:
        return "", f"not in {base}, unlabeled or test"
    return ("train", top) if rest and not kind else ("", "outside of a class folder")


def _find_place_by_table(
    splits: Mapping[str, str], found: Reading, table: str, file: str
) -> tuple[str, str]:
    """The same by a table. Test and validation images may get their class from the folder.

    What a folder or a row of the table holds out is not trained on.
    """
    top, _, rest = file.partition("/")
    kind = splits.get(top, "train") if rest else "train"
    name = found.labels.get(file, NO_CLASS_NAME)
    is_split = kind in HELD_OUT
    if not is_split:
        kind = found.parts.get(file, kind)
    if name is None:
        return "", f"marked as no class or skipped in {LABELS_CSV}"
    if kind == "unlabeled":
        return "train", name if file not in found.parts else NO_CLASS_NAME
    inner = rest.partition("/")[0] if is_split and "/" in rest else ""
    if kind == "train" or name or (inner and not means_unlabeled(inner)):
        return kind, name or inner
    where = "outside of a class folder" if is_split else f"without a class in {table}"
    where = "without a label" if file in found.labels else where
    return "", f"a {kind} image {where}"


def _name_classes(found: Sequence[str], warnings: list[str]) -> dict[str, str]:
    """Folded name → name, of all classes of training images."""
    spellings: dict[str, set[str]] = {}
    for name in found:
        spellings.setdefault(fold_class(name), set()).add(name)
    for names in spellings.values():
        different = {unicodedata.normalize("NFC", name) for name in names}
        if len(different) > 1:
            warnings.append(
                f"{' and '.join(map(repr, sorted(different)))} count as one class: rename one if "
                "they are different."
            )
    chosen = choose_spellings(found)
    alike: dict[str, list[str]] = {}
    for folded, name in chosen.items():
        alike.setdefault(resemble(folded), []).append(name)
    warnings += [
        f"{' and '.join(map(repr, sorted(names)))} count as different classes: rename one if they "
        "are the same."
        for names in alike.values()
        if len(names) > 1
    ]
    return chosen
