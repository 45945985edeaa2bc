"""Folders as public data sets and other tools lay them out: read, or refused in one sentence."""

import json

import pytest

from cls_jax.errors import UserError
from cls_jax.photos.folder.layout import read_layout
from cls_jax.photos.folder.options import AUTOMATIC, FolderOptions
from cls_jax.photos.images.files import list_images
from tests.photos.folder.test_odd_folders import place


def write_table(header, *rows):
    return "\n".join([header, *rows, ""])


def write_lines(*rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows)


COCO_IMAGES = [{"id": f"x{i}", "file_name": f"photos/{i}.jpg"} for i in range(3)]
LABELS = {"photos/0.jpg": "cat", "photos/1.jpg": "dog", "photos/2.jpg": "cat"}
PHOTOS = " ".join(LABELS)
HAM = write_table(
    "lesion_id,image_id,dx,dx_type,age",
    *(f"HAM_{i // 2},ISIC_{i},{dx},histo,5{i % 2}.0" for i, dx in enumerate(("nv", "mel") * 2)),
)
HAM_IMAGES = " ".join(f"HAM10000_images_part_{1 + i // 2}/ISIC_{i}.jpg" for i in range(4))
# Name → the images, other files by name, and the labels: training images by name, after a star
# validation and test images.
READ = {
    "ISIC 2018": (
        "ISIC2018_Task3_Training_Input/ISIC_1.jpg ISIC2018_Task3_Training_Input/ISIC_2.jpg",
        {
            "ISIC2018_Task3_Training_GroundTruth/GroundTruth.csv": write_table(
                "image,MEL,NV,BCC", "ISIC_1,1.0,0.0,0.0", "ISIC_2,0.0,1.0,0.0"
            ),
            "ISIC2018_Task3_Training_Input/ATTRIBUTION.txt": "Images of ISIC, by others.\n",
        },
        {f"ISIC2018_Task3_Training_Input/ISIC_{i}.jpg": k for i, k in ((1, "MEL"), (2, "NV"))},
    ),
    "Cassava leaf disease (Kaggle)": (
        "train_images/1.jpg train_images/2.jpg test_images/3.jpg",
        {
            "train.csv": write_table("image_id,label", "1.jpg,0", "2.jpg,1"),
            "sample_submission.csv": write_table("image_id,label", "3.jpg,4"),
            "label_num_to_disease_map.json": '{"0": "CBB", "1": "CBSD", "2": "CGM"}',
        },
        {"train_images/1.jpg": "CBB", "train_images/2.jpg": "CBSD"},
    ),
    "APTOS 2019 (Kaggle)": (
        "train_images/0a.png train_images/0b.png train_images/0c.png test_images/ff.png",
        {
            "train.csv": write_table("id_code,diagnosis", "0a,2", "0b,0", "0c,2"),
            "test.csv": write_table("id_code", "ff"),
            "sample_submission.csv": write_table("id_code,diagnosis", "ff,0"),
        },
        {f"train_images/0{k}.png": v for k, v in (("a", "2"), ("b", "0"), ("c", "2"))},
    ),
    "CIFAR-10 (Kaggle)": (
        "train/1.png train/2.png test/1.png test/2.png",
        {
            "trainLabels.csv": write_table("id,label", "1,frog", "2,truck"),
            "sampleSubmission.csv": write_table("id,label", "1,cat", "2,cat"),
        },
        {"train/1.png": "frog", "train/2.png": "truck"},
    ),
    "Dog breeds (Kaggle)": (
        "train/a1.jpg train/a2.jpg test/b1.jpg",
        {
            "labels.csv": write_table("id,breed", "a1,pug", "a2,husky"),
            "sample_submission.csv": write_table("id,pug,husky", "b1,0.5,0.5"),
        },
        {"train/a1.jpg": "pug", "train/a2.jpg": "husky"},
    ),
    "Plant pathology (Kaggle)": (
        "images/Train_0.jpg images/Train_1.jpg images/Test_0.jpg",
        {
            "train.csv": write_table("image_id,healthy,rust", "Train_0,0,1", "Train_1,1,0"),
            "test.csv": write_table("image_id", "Test_0"),
            "sample_submission.csv": write_table("image_id,healthy,rust", "Test_0,0.25,0.75"),
        },
        {"images/Train_0.jpg": "rust", "images/Train_1.jpg": "healthy"},
    ),
    "Conservation (DrivenData)": (
        "train_features/ZJ0.jpg train_features/ZJ1.jpg test_features/ZJ3.jpg",
        {"train_labels.csv": write_table("id,bird,hog", "ZJ0,1.0,0.0", "ZJ1,0.0,1.0")},
        {"train_features/ZJ0.jpg": "bird", "train_features/ZJ1.jpg": "hog"},
    ),
    "Timelapse": (
        "Site1/100RECNX/I1.JPG Site1/100RECNX/I2.JPG Site2/100RECNX/I1.JPG",
        {
            "TimelapseData.csv": write_table(
                "RootFolder,File,RelativePath,DateTime,DeleteFlag,Species",
                "All,I1.JPG,Site1\\100RECNX,2020-01-01 10:00:00,false,elk",
                "All,I2.JPG,Site1\\100RECNX,2020-01-01 10:01:00,false,fox",
                "All,I1.JPG,Site2\\100RECNX,2020-01-01 10:00:00,false,fox",
            )
        },
        {
            "Site1/100RECNX/I1.JPG": "elk",
            "Site1/100RECNX/I2.JPG": "fox",
            "Site2/100RECNX/I1.JPG": "fox",
        },
    ),
    "COCO Camera Traps": (
        PHOTOS,
        {
            "traps.json": json.dumps(
                {
                    "info": {},
                    "images": COCO_IMAGES,
                    "annotations": [
                        {"id": f"a{i}", "image_id": f"x{i}", "category_id": 1 + i % 2}
                        for i in range(3)
                    ],
                    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
                }
            )
        },
        LABELS,
    ),
    "Vertex AI": (
        PHOTOS,
        {
            "import.csv": write_table(
                *(
                    f"{('TRAIN', 'TRAIN', 'TEST')[i]},gs://bucket/{k},{v}"
                    for i, (k, v) in enumerate(LABELS.items())
                )
            )
        },
        {"photos/0.jpg": "cat", "photos/1.jpg": "dog", "*photos/2.jpg": "cat"},
    ),
    "doccano": (
        PHOTOS,
        {
            "all.jsonl": write_lines(
                *({"filename": k, "label": [v], "Comments": []} for k, v in LABELS.items())
            )
        },
        LABELS,
    ),
    "SageMaker Ground Truth": (
        PHOTOS,
        {
            "output.manifest": write_lines(
                *(
                    {"source-ref": f"s3://b/{k}", "label": v, "label-metadata": {"confidence": 1}}
                    for k, v in LABELS.items()
                )
            )
        },
        LABELS,
    ),
    "Hugging Face with numbers": (
        "train/1.jpg train/2.jpg validation/1.jpg",
        {
            "train/metadata.jsonl": write_lines(
                {"file_name": "1.jpg", "label": 0}, {"file_name": "2.jpg", "label": 1}
            ),
            "validation/metadata.jsonl": write_lines({"file_name": "1.jpg", "label": 1}),
            "README.md": "---\ndataset_info:\n  features:\n  - name: label\n    dtype:\n"
            "      class_label:\n        names:\n          '0': cat\n          '1': dog\n---\n",
        },
        {"train/1.jpg": "cat", "train/2.jpg": "dog", "*validation/1.jpg": "dog"},
    ),
    "ImageNet's lists, as of Caffe": (
        "imagenet/I_1.JPEG imagenet/I_2.JPEG imagenet/I_3.JPEG",
        {"list.txt": "imagenet/I_1.JPEG 65\nimagenet/I_2.JPEG 7\nimagenet/I_3.JPEG 65\n"},
        {"imagenet/I_1.JPEG": "65", "imagenet/I_2.JPEG": "7", "imagenet/I_3.JPEG": "65"},
    ),
    "class folders of WordNet, and a table of noisy labels (Imagenette)": (
        "train/n01/1.JPEG train/n02/2.JPEG val/n01/3.JPEG",
        {
            "noisy_imagenette.csv": write_table(
                "path,noisy_labels_0,noisy_labels_1,is_valid",
                "train/n01/1.JPEG,n01,n02,False",
                "train/n02/2.JPEG,n02,n02,False",
                "val/n01/3.JPEG,n01,n01,True",
            )
        },
        {"train/n01/1.JPEG": "n01", "train/n02/2.JPEG": "n02", "*val/n01/3.JPEG": "n01"},
    ),
    "traffic signs (GTSRB)": (
        "Train/0/0_0.png Train/1/1_0.png Meta/0.png Test/0.png",
        {
            "Train.csv": write_table(
                "Width,ClassId,Path", "2,0,Train/0/0_0.png", "2,1,Train/1/1_0.png"
            ),
            "Meta.csv": write_table("Path,ClassId,ShapeId", "Meta/0.png,0,1"),
        },
        {"Train/0/0_0.png": "0", "Train/1/1_0.png": "1"},
    ),
}
# The same, and the beginning of a sentence.
ASKED = {
    "HAM10000": (
        HAM_IMAGES,
        {"HAM10000_metadata.csv": HAM},
        r"HAM10000_metadata.csv may have",
    ),
    "Oxford pets": (
        "images/beagle_1.jpg images/pug_1.jpg",
        {"annotations/list.txt": "#Image CLASS-ID SPECIES\nbeagle_1 1 2\npug_1 2 2\n"},
        r"annotations/list.txt may have the classes in 'column 2', 'column 3': pass --label-column",
    ),
    "CUB-200": (
        "images/001.Black/a.jpg images/002.Laysan/b.jpg",
        {"images.txt": "1 001.Black/a.jpg\n2 002.Laysan/b.jpg\n"},
        r"images.txt may have the classes in 'column 1', but they hardly repeat",
    ),
    "captions of Hugging Face": (
        "train/1.jpg train/2.jpg",
        {"train/metadata.csv": write_table("file_name,text", "1.jpg,a cat", "2.jpg,a dog")},
        r"train/metadata.csv may have the classes in 'text', but they hardly repeat",
    ),
    "detections of MegaDetector": (
        PHOTOS,
        {"md.json": json.dumps({"images": [{"file": name, "detections": []} for name in LABELS]})},
        r"only the class 'photos'",
    ),
    "folds of Kaggle": (
        "train/1.jpg train/2.jpg",
        {
            "train.csv": write_table("image,label", "1.jpg,a", "2.jpg,b"),
            "folds.csv": write_table("image,label,fold", "1.jpg,a,0", "2.jpg,b,0"),
        },
        r"Both 'folds.csv' and 'train.csv' name images",
    ),
    "sites as folders beside a table": (
        "hill/1.jpg river/2.jpg",
        {"animals.csv": write_table("image,label", "1.jpg,elk", "2.jpg,fox")},
        r"'hill/1.jpg' has the class 'hill' by its folder and 'elk' in animals.csv: pass --layout",
    ),
}


def read(root, images, files, options=AUTOMATIC):
    for name in images.split():
        place(root, name).touch()
    for name, content in files.items():
        place(root, name).write_text(content)
    return read_layout(root, list_images(root), options)


@pytest.mark.parametrize("title", READ)
def test_public_layouts_are_read(tmp_path, title):
    images, files, labels = READ[title]
    layout = read(tmp_path, images, files)
    found = {file.name: label for file, label in layout.train if label}
    found |= {f"*{file.name}": label for file, label in (*layout.validation, *layout.test)}
    assert found == labels


@pytest.mark.parametrize("title", ASKED)
def test_what_is_not_clear_is_asked(tmp_path, title):
    images, files, sentence = ASKED[title]
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, images, files)


def test_answers_to_these_questions_are_read(tmp_path):
    files = {"HAM10000_metadata.csv": HAM}
    layout = read(tmp_path, HAM_IMAGES, files, FolderOptions(label_column="dx"))
    assert [label for _, label in layout.train] == ["nv", "mel", "nv", "mel"]
    (tmp_path / "HAM10000_metadata.csv").unlink()
    assert len(read(tmp_path, "", {}).class_names) == 2
