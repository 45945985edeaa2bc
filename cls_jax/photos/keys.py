"""The keys of a configuration that the product adds, so that every part of it knows them.

`cls_jax/__init__.py` imports this file, whatever else is imported.
"""

from cls_jax.options import ADDED, BELOW_1, DECODING, TEXT, YES_OR_NO, Option, Rule, between, one_of

_LAYOUT = Rule(lambda value: value in ("", "classes", "splits"), "classes, splits or nothing")

# fmt: off
# Of a folder of images.
ADDED["folder"] = DECODING | {
    "data.file_column": Option("", TEXT,
        "Column of a folder's labels.csv with the files: its header, or its number from 1. "
        "Empty: the one that names files of the folder.", is_runtime=True),
    "data.label_column": Option("", TEXT,
        "The column with the classes, in the same way. Empty: by its header, or the only other "
        "column.", is_runtime=True),
    "data.layout": Option("", _LAYOUT,
        "What folders called train, val and test are: classes like the folders beside them, or "
        "splits that hold class folders. Empty: asked where both are possible.",
        is_runtime=True),
    "data.source_column": Option("", TEXT,
        "The column with what each image comes from, such as a patient, in the same way. Empty: "
        "by its header.", is_runtime=True),
    "data.source_pattern": Option("", TEXT,
        r"Regular expression of names of files, whose group is what an image comes from, such as "
        r"`(P\d+)_`.", is_runtime=True),
    "data.labels": Option("", TEXT,
        "File with a folder's labels, absolute or relative to the folder. Empty: labels.csv, "
        "class folders, or the only other table that fits.", is_runtime=True),
    "data.label_pattern": Option("", TEXT,
        r"Regular expression of names of files, whose group is the class, such as "
        r"`([^/]+)_\d+\.`.", is_runtime=True),
    "data.tags": Option(False, YES_OR_NO,
        "Whether an image may have several classes, its tags. Only for instant classifiers."),
    "data.cache_gigabytes": Option(20.0, between(0.0, 1e6),
        "Size of the cache of decoded images. Beyond it, the least recently used are deleted.",
        is_runtime=True),
}
# Of heads and labels from frozen features, whatever the dataset.
ADDED[""] = {
    "model.init_head": Option("random", one_of("random", "probe", "inferred"),
        "Last layer of pretrained networks: random, or fitted to frozen features of the labeled "
        "images (probe) or of all, with inferred labels (inferred)."),
    "model.final_head": Option("trained", one_of("trained", "inferred"),
        "Last layer of the averaged networks after the last step: as trained, or refitted to "
        "labels inferred from frozen features, the networks and graphs of their features."),
    "model.inferred_images": Option(0, between(0),
        "Unlabeled images, evenly spaced, whose labels are inferred from frozen features. 0: "
        "all."),
    "model.inferred_by": Option("", TEXT,
        "More pretrained weights, comma-separated, whose features help to infer labels: "
        "`builtin:efficientnet_lite2`. See `cls-jax backbones`."),
    "model.tag_precision": Option(0.0, BELOW_1,
        "With `data.tags`, the precision to aim for: each tag's threshold is the smallest one at "
        "which the images above it are expected to have it so often. 0: thresholds of 0.5."),
}
# fmt: on
