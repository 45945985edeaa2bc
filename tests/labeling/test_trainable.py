"""What `cls-jax label` writes, `cls-jax train` reads."""

from cls_jax.data.images.files import list_images
from cls_jax.data.sources.folder_layout import read_layout
from tests.labeling.sessions import create_photographs, decide_by_name, open_ready


def read_labels(folder):
    layout = read_layout(folder, list_images(folder))
    return {file.name: label for file, label in layout.train}, layout


def test_training_sees_the_last_decision_about_each_image(tmp_path):
    folder = tmp_path / "photos"
    names = [f"{i}.png" for i in range(7)] + ["unlabeled/7.png", " odd, name.png"]
    session = open_ready(folder, create_photographs(folder, len(names), names))
    decide_by_name(session, "0.png", "cat")
    decide_by_name(session, "1.png", "dog")
    decide_by_name(session, "1.png", "cat")  # Changed.
    decide_by_name(session, "2.png", "dog")
    session.undo("w")
    decide_by_name(session, "3.png", "", decision="none")
    decide_by_name(session, "4.png", "", decision="skip")
    decide_by_name(session, "5.png", "", decision="none")
    session.undo("w")
    decide_by_name(session, "unlabeled/7.png", "dog")
    decide_by_name(session, " odd, name.png", "owl")
    labels, layout = read_labels(folder)
    assert labels == {
        "0.png": "cat",
        "1.png": "cat",
        "2.png": "",
        "4.png": "",
        "5.png": "",
        "6.png": "",
        "unlabeled/7.png": "dog",
        " odd, name.png": "owl",
    }
    assert ("3.png", "of no class, as labels.csv says") in layout.skipped
    assert layout.warnings == []
    assert layout.class_names == ("cat", "dog", "owl")


def test_folders_of_labeled_images_keep_their_labels_beside_the_table(tmp_path):
    folder = tmp_path / "photos"
    names = ["labeled/cat/0.png", "labeled/dog/1.png", "unlabeled/2.png", "labeled/dog/3.png"]
    session = open_ready(folder, create_photographs(folder, len(names), names))
    decide_by_name(session, "unlabeled/2.png", "owl")
    decide_by_name(session, "labeled/dog/3.png", "cat")
    labels, _ = read_labels(folder)
    assert labels == {
        "labeled/cat/0.png": "cat",
        "labeled/dog/1.png": "dog",
        "labeled/dog/3.png": "cat",
        "unlabeled/2.png": "owl",
    }


def test_tables_without_times_count_in_the_order_of_their_rows(tmp_path):
    folder = tmp_path / "photos"
    create_photographs(folder, 4, [f"{i}.png" for i in range(4)])
    table = "file,label\n0.png,cat\n1.png,cat\n0.png,dog\nfile,label\n2.png,owl\n1.png,\n"
    (folder / "labels.csv").write_text(table)
    labels, layout = read_labels(folder)
    assert labels == {"0.png": "dog", "1.png": "", "2.png": "owl", "3.png": ""}
    (warning,) = layout.warnings
    assert "0.png" in warning
    assert "the last one counts" in warning
