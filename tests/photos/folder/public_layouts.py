"""Folders as public data sets and other tools lay them out: read, or refused in one sentence.

Rows of `test_readings.py`.
"""

import json


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
PETS = " ".join(f"images/{name}_{i}.jpg" for name in ("Abyssinian", "pug") for i in (1, 2, 3))
BOX = "0.5 0.5 0.1 0.1"


def write_coco(files, labels):
    names = ["all", *sorted(set(labels))]
    return json.dumps(
        {
            "images": [{"id": i, "file_name": name} for i, name in enumerate(files)],
            "annotations": [
                {"id": i, "image_id": i, "category_id": names.index(label), "bbox": [0, 0, 1, 1]}
                for i, label in enumerate(labels)
            ],
            "categories": [{"id": i, "name": name} for i, name in enumerate(names)],
        }
    )


def write_each(name, *contents):
    """A file for each image, by the number of the image in its name."""
    return {
        name.format(i): content if isinstance(content, str) else json.dumps(content)
        for i, content in enumerate(contents)
    }


# Name → what `Read` of `test_readings.py` has.
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
READ |= {
    "melanoma (Kaggle)": (
        "train/a.jpg train/b.jpg test/c.jpg test/d.jpg",
        {
            "train.csv": write_table("image_name,sex,age,target", "a,m,50,0", "b,f,60,1"),
            "test.csv": write_table("image_name,sex,age", "c,m,50", "d,f,50"),
        },
        {"train/a.jpg": "0", "train/b.jpg": "1"},
    ),
    "imagefolder of Hugging Face": (
        "train/0.jpg train/1.jpg test/2.jpg",
        {
            "train/metadata.csv": write_table("file_name,label", "0.jpg,cat", "1.jpg,dog"),
            "test/metadata.csv": write_table("file_name,label", "2.jpg,cat"),
        },
        {"train/0.jpg": "cat", "train/1.jpg": "dog", "*test/2.jpg": "cat"},
    ),
    "Roboflow, one column for each class": (
        "train/0.jpg train/1.jpg valid/2.jpg",
        {
            "train/_classes.csv": write_table("filename, cat, dog", "0.jpg, 1, 0", "1.jpg, 0, 1"),
            "valid/_classes.csv": write_table("filename, cat, dog", "2.jpg, 1, 0"),
        },
        {"train/0.jpg": "cat", "train/1.jpg": "dog", "*valid/2.jpg": "cat"},
    ),
    "Roboflow, COCO": (
        "train/0.jpg train/1.jpg valid/2.jpg",
        {
            "train/_annotations.coco.json": write_coco(["0.jpg", "1.jpg"], ["cat", "dog"]),
            "valid/_annotations.coco.json": write_coco(["2.jpg"], ["cat"]),
        },
        {"train/0.jpg": "cat", "train/1.jpg": "dog", "*valid/2.jpg": "cat"},
    ),
    "CVAT, COCO": (
        "images/default/0.jpg images/default/1.jpg",
        {"annotations/instances_default.json": write_coco(["0.jpg", "1.jpg"], ["cat", "dog"])},
        {"images/default/0.jpg": "cat", "images/default/1.jpg": "dog"},
    ),
    "CVAT, ImageNet": (
        "cat/0.jpg dog/1.jpg",
        {"synsets.txt": "cat\ndog\n"},
        {"cat/0.jpg": "cat", "dog/1.jpg": "dog"},
    ),
    "CVAT, Datumaro": (
        "images/default/a.jpg images/default/b.jpg",
        {
            "annotations/default.json": json.dumps(
                {
                    "categories": {"label": {"labels": [{"name": "cat"}, {"name": "dog"}]}},
                    "items": [
                        {
                            "id": name,
                            "annotations": [{"id": 0, "type": "label", "label_id": i}],
                            "image": {"path": f"{name}.jpg"},
                        }
                        for i, name in enumerate("ab")
                    ],
                }
            )
        },
        {"images/default/a.jpg": "cat", "images/default/b.jpg": "dog"},
    ),
    "Vertex AI, JSON lines": (
        PHOTOS,
        {
            "import.jsonl": write_lines(
                *(
                    {
                        "imageGcsUri": f"gs://bucket/{k}",
                        "classificationAnnotation": {
                            "displayName": v,
                            "annotationResourceLabels": {"annotation_set_name": "80"},
                        },
                        "dataItemResourceLabels": {"ml_use": ("training", "test")[i == 2]},
                    }
                    for i, (k, v) in enumerate(LABELS.items())
                )
            )
        },
        {"photos/0.jpg": "cat", "photos/1.jpg": "dog", "*photos/2.jpg": "cat"},
    ),
    "SageMaker Ground Truth with numbers": (
        PHOTOS,
        {
            "output.manifest": write_lines(
                *(
                    {"source-ref": f"s3://b/{k}", "x": 0, "x-metadata": {"class-name": v}}
                    for k, v in LABELS.items()
                )
            )
        },
        LABELS,
    ),
    "Azure Machine Learning": (
        PHOTOS,
        {
            "train.jsonl": write_lines(
                *(
                    {
                        "image_url": f"azureml://subscriptions/a/datastores/b/paths/{k}",
                        "image_details": {"format": "jpg", "width": "4px"},
                        "label": v,
                    }
                    for k, v in LABELS.items()
                )
            )
        },
        LABELS,
        "",
        ("begin with 'a/datastores/b/paths', which is not in the folder",),
    ),
    "iNaturalist": (
        "train_val2019/Plants/12/a.jpg train_val2019/Birds/1/b.jpg",
        {
            "train2019.json": write_coco(
                ["train_val2019/Plants/12/a.jpg", "train_val2019/Birds/1/b.jpg"], ["Abies", "Parus"]
            )
        },
        {"train_val2019/Plants/12/a.jpg": "Abies", "train_val2019/Birds/1/b.jpg": "Parus"},
    ),
    "ImageNet (Kaggle)": (
        "Data/train/n01440764/a.JPEG Data/train/n01443537/b.JPEG Data/val/c.JPEG Data/test/d.JPEG",
        {
            "LOC_train_solution.csv": write_table(
                "ImageId,PredictionString",
                "a,n01440764 1 2 3 4 ",
                "b," + "n01443537 1 2 3 4 " * 20,
            ),
            "LOC_val_solution.csv": write_table("ImageId,PredictionString", "c,n01440764 1 2 3 4 "),
            "LOC_sample_submission.csv": write_table(
                "ImageId,PredictionString", "d,n01440764 1 2 3 4"
            ),
            "LOC_synset_mapping.txt": "n01440764 tench, Tinca tinca\nn01443537 goldfish\n",
        },
        {
            "Data/train/n01440764/a.JPEG": "tench, Tinca tinca",
            "Data/train/n01443537/b.JPEG": "goldfish",
            "*Data/val/c.JPEG": "tench, Tinca tinca",
        },
    ),
    "VIA": (
        PHOTOS,
        {
            "via_project.json": json.dumps(
                {
                    "_via_settings": {},
                    "_via_img_metadata": {
                        f"{k}1": {
                            "filename": k.partition("/")[2],
                            "size": 1,
                            "regions": [],
                            "file_attributes": {"animal": v},
                        }
                        for k, v in LABELS.items()
                    },
                }
            )
        },
        LABELS,
    ),
    "SuperAnnotate": (
        PHOTOS,
        {
            "annotations.json": json.dumps(
                {k.partition("/")[2]: {"instances": [], "tags": [v]} for k, v in LABELS.items()}
            )
        },
        LABELS,
    ),
    "Create ML": (
        PHOTOS,
        {
            "annotations.json": json.dumps(
                [{"image": k.partition("/")[2], "annotation": v} for k, v in LABELS.items()]
            )
        },
        LABELS,
    ),
    "pandas, columns": (
        PHOTOS,
        {
            "x.json": json.dumps(
                {
                    "file": {str(i): k for i, k in enumerate(LABELS)},
                    "label": {str(i): v for i, v in enumerate(LABELS.values())},
                }
            )
        },
        LABELS,
    ),
    "Edge Impulse": (
        PHOTOS,
        {
            "info.labels": json.dumps(
                {
                    "version": 1,
                    "files": [
                        {"path": k, "category": "training", "label": {"type": "label", "label": v}}
                        for k, v in LABELS.items()
                    ],
                }
            )
        },
        LABELS,
    ),
    "Google Takeout, unpacked": (
        "Cats/0.jpg Dogs/1.jpg",
        {f"{name}.json": '{"title": "0.jpg"}' for name in ("Cats/0.jpg", "Dogs/1.jpg")},
        {"Cats/0.jpg": "Cats", "Dogs/1.jpg": "Dogs"},
    ),
    "Food-101": (
        "images/apple_pie/1.jpg images/waffles/2.jpg",
        {
            "meta/classes.txt": "apple_pie\nwaffles\n",
            "meta/train.json": '{"apple_pie": ["apple_pie/1"], "waffles": ["waffles/2"]}',
        },
        {"images/apple_pie/1.jpg": "apple_pie", "images/waffles/2.jpg": "waffles"},
    ),
    "Places365": (
        "val_256/P_1.jpg val_256/P_2.jpg val_256/P_3.jpg",
        {
            "places365_val.txt": "P_1.jpg 1\nP_2.jpg 0\nP_3.jpg 1\n",
            "categories_places365.txt": "/a/airfield 0\n/a/alley 1\n",
        },
        {f"val_256/P_{i}.jpg": f"/a/{k}" for i, k in ((1, "alley"), (2, "airfield"), (3, "alley"))},
    ),
    "a shard of WebDataset, unpacked": (
        "0.jpg 1.jpg 2.jpg",
        write_each("{}.cls", "0", "1", "0\n") | {"classes.txt": "cat\ndog\n"},
        {"0.jpg": "cat", "1.jpg": "dog", "2.jpg": "cat"},
    ),
    "Supervisely": (
        "a/img/0.jpg a/img/1.jpg b/img/0.jpg",
        {"meta.json": '{"classes": [], "tags": []}'}
        | {
            f"{name}.json": json.dumps({"tags": [{"name": "train"}, {"name": k}], "objects": []})
            for name, k in (("a/ann/0.jpg", "cat"), ("a/ann/1.jpg", "dog"), ("b/ann/0.jpg", "dog"))
        },
        {"a/img/0.jpg": "cat", "a/img/1.jpg": "dog", "b/img/0.jpg": "dog"},
    ),
    "V7": (
        PHOTOS,
        write_each(
            "annotations/{}.json",
            *(
                {"item": {"name": k}, "annotations": [{"name": v, "tag": {}}]}
                for k, v in LABELS.items()
            ),
        ),
        LABELS,
    ),
    "LabelMe": (
        PHOTOS,
        write_each(
            "photos/{}.json",
            {"imagePath": "0.jpg", "flags": {"cat": True, "dog": False}, "shapes": []},
            {"imagePath": "1.jpg", "flags": {}, "shapes": [{"label": "dog"}, {"label": "dog"}]},
            {"imagePath": "2.jpg", "flags": {}, "shapes": [{"label": "cat"}]},
        ),
        LABELS,
    ),
    "Pascal VOC": (
        "JPEGImages/0.jpg JPEGImages/1.jpg",
        write_each(
            "Annotations/{}.xml",
            *(
                f"<annotation><object><name>{k}</name></object></annotation>"
                for k in ("cat", "dog")
            ),
        ),
        {"JPEGImages/0.jpg": "cat", "JPEGImages/1.jpg": "dog"},
    ),
    "boxes of YOLO": (
        "images/train/0.jpg images/train/1.jpg images/train/2.jpg images/val/3.jpg",
        {
            "data.yaml": "names: [cat, dog]\n",
            **write_each("labels/train/{}.txt", f"0 {BOX}\n0 {BOX}\n", f"1 {BOX}\n", ""),
            "labels/val/3.txt": f"1 {BOX}",
        },
        {"images/train/0.jpg": "cat", "images/train/1.jpg": "dog", "*images/val/3.jpg": "dog"},
    ),
    # What other programs and people write.
    "splits with files of the same names": (
        "train/0.jpg train/1.jpg valid/0.jpg valid/1.jpg test/0.jpg test/1.jpg",
        {
            f"{part}/_annotations.coco.json": write_coco(["0.jpg", "1.jpg"], labels)
            for part, labels in (("train", "ab"), ("valid", "ba"), ("test", "ba"))
        },
        {"train/0.jpg": "a", "train/1.jpg": "b"}
        | {f"*{part}/{i}.jpg": "ba"[i] for part in ("valid", "test") for i in (0, 1)},
    ),
    "classes that list their files": (
        PHOTOS,
        {"split.json": json.dumps({"cat": ["0.jpg", "2.jpg"], "dog": ["1.jpg"]})},
        LABELS,
    ),
    "Timelapse, a table in the folder of each site": (
        " ".join(f"Site{k}/CAM/{i}.jpg" for k in (1, 2) for i in (1, 2, 3)),
        {
            f"Site{k}/TimelapseData.csv": write_table(
                "File,RelativePath,Species",
                *(f"{i}.jpg,CAM,{'elk' if i == k else 'fox'}" for i in (1, 2)),
            )
            for k in (1, 2)
        },
        {f"Site{k}/CAM/{i}.jpg": "elk" if i == k else "fox" for k in (1, 2) for i in (1, 2)},
    ),
    "names without extension mean training images": (
        "train/1.png train/2.png test/1.png test/2.png",
        {"trainLabels.csv": write_table("id,label", "1,a", "2,b")},
        {"train/1.png": "a", "train/2.png": "b"},
    ),
    "names with a meaning relative to the table and to the top": (
        " ".join(f"{part}/{i}.png" for part in ("train", "test") for i in (1, 2, 3, 4)),
        {
            "train/all.csv": write_table(
                "file,label", "test/1.png,a", "test/2.png,b", "train/3.png,a", "train/4.png,b"
            )
        },
        {"*test/1.png": "a", "*test/2.png": "b", "train/3.png": "a", "train/4.png": "b"},
    ),
    "names that are paths in all rows, one of which is gone": (
        "2.png 3.png train/1.png",
        {"table.csv": write_table("file,label", "1,a", "2,b", "3,a")},
        {"2.png": "b", "3.png": "a"},
        "",
        ("such as '1', which fits no image",),
    ),
    "columns of fractions for classes": (
        "photos/1.png photos/2.png",
        {"GroundTruth.csv": write_table("image,MEL,NV", "1,1.0,0.0", "2,0.0,1.0")},
        {"photos/1.png": "MEL", "photos/2.png": "NV"},
    ),
    "columns of words for classes": (
        "photos/1.png photos/2.png",
        {"GroundTruth.csv": write_table("image,MEL,NV", "1,True,False", "2,False,True")},
        {"photos/1.png": "MEL", "photos/2.png": "NV"},
    ),
    "a list of classes that are counted from one": (
        "1/0.png 2/1.png 3/2.png",
        {"classes.txt": "cat\ndog\nbig owl\n"},
        {"1/0.png": "cat", "2/1.png": "dog", "3/2.png": "big owl"},
    ),
    "a class that was added on the page to numbers with names": (
        "0/0.png 1/1.png",
        {
            "classes.txt": "cat\ndog\n",
            "labels.csv": write_table(
                "file,label,decision,time", "1/1.png,owl,label,2026-01-01T00:00:00.000000Z"
            ),
        },
        {"0/0.png": "cat", "1/1.png": "owl"},
        "",
        ("1 image without a row in labels.csv is labeled by its folder",),
    ),
    "an answer that a crash has cut": (
        PHOTOS,
        {"labels.csv": "file,label\n0.jpg,cat\n1.jpg,dog\n2.jpg,,ski"},
        {"photos/0.jpg": "cat", "photos/1.jpg": "dog"},
    ),
}
# Name → what `Asked` has.
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
        "images/001.Black/a.jpg images/002.Laysan/b.jpg images/002.Laysan/c.jpg",
        {
            "images.txt": "1 001.Black/a.jpg\n2 002.Laysan/b.jpg\n3 002.Laysan/c.jpg\n",
            "image_class_labels.txt": "1 1\n2 2\n3 2\n",
            "train_test_split.txt": "1 1\n2 0\n3 1\n",
        },
        r"'images' has no image of its own, .*, or pass \S*/images, whose folders are then the",
    ),
    "captions of Hugging Face": (
        "train/1.jpg train/2.jpg",
        {"train/metadata.csv": write_table("file_name,text", "1.jpg,a cat", "2.jpg,a dog")},
        r"train/metadata.csv may have the classes in 'text', but they hardly repeat",
    ),
    "detections of MegaDetector": (
        PHOTOS,
        {"md.json": json.dumps({"images": [{"file": name, "detections": []} for name in LABELS]})},
        r"md.json has objects with values of their own in 'detections', and no column of classes",
    ),
    "folds of Kaggle": (
        "train/1.jpg train/2.jpg",
        {
            "train.csv": write_table("image,label", "1.jpg,a", "2.jpg,b"),
            "folds.csv": write_table("image,label,fold", "1.jpg,a,0", "2.jpg,b,0"),
        },
        r"Both 'folds.csv' and 'train.csv' name images",
    ),
    "several diseases of a leaf (Kaggle)": (
        "train_images/a.jpg train_images/b.jpg test_images/c.jpg",
        {
            "train.csv": write_table("image,labels", "a.jpg,rust", "b.jpg,scab rust"),
            "sample_submission.csv": write_table("image,labels", "c.jpg,rust"),
        },
        r"train.csv gives 'b.jpg' several classes, 'scab', 'rust'",
    ),
    "Caltech": (
        "101_ObjectCategories/ant/0.jpg 101_ObjectCategories/bass/0.jpg",
        {"Annotations/ant/0.mat": ""},
        r"pass \S*/101_ObjectCategories, whose folders are then the classes.$",
    ),
    "flowers of Oxford": (
        "jpg/0.jpg jpg/1.jpg",
        {"imagelabels.mat": ""},
        r"'imagelabels.mat' is not read: if it has the labels, save them as a CSV file",
    ),
    "VIA, CSV": (
        PHOTOS,
        {
            "via.csv": write_table(
                "filename,file_size,file_attributes,region_count",
                *(
                    f'{k.partition("/")[2]},12,"{{""animal"":""{v}""}}",0'
                    for k, v in LABELS.items()
                ),
            )
        },
        r"via.csv may have the classes in 'file_size', 'file_attributes', 'region_count': pass",
    ),
    "Zooniverse": (
        PHOTOS,
        {"classifications.csv": write_table("id,annotations,subject_data", '1,"[{}]","{}"')},
        r"classifications.csv has objects .* in 'annotations', 'subject_data', and no column of",
    ),
    "Wildlife Insights": (
        PHOTOS,
        {
            "images.csv": write_table(
                "deployment_id,filename,class,species,common_name",
                *(f"d,{k.partition('/')[2]},Mammalia,{v} sp.,{v}" for k, v in LABELS.items()),
            )
        },
        r"images.csv may have the classes in 'class', 'species': pass --label-column",
    ),
    "Camelot": (
        PHOTOS,
        {
            "export.csv": write_table(
                "Absolute Path,Species Common Name,Survey Site",
                *(f"/home/ann/{k},{v},S{i}" for i, (k, v) in enumerate(LABELS.items())),
            )
        },
        r"export.csv may have the classes in 'Species Common Name', 'Survey Site': pass",
    ),
    "DeepLabCut": (
        "labeled-data/a/0.png labeled-data/a/1.png",
        {
            "labeled-data/a/CollectedData.csv": write_table(
                "scorer,Ann,Ann", "coords,x,y", "0.png,1.5,2.5", "1.png,1.2,2.7"
            )
        },
        r"labeled-data/a/CollectedData.csv may have the classes in 'Ann', 'Ann': pass",
    ),
    "Kili": (
        PHOTOS,
        {
            "labels.json": json.dumps(
                [{"externalId": k, "labels": [{"jsonResponse": {}}]} for k in LABELS]
            )
        },
        r"labels.json has .* in place of a class: write one class",
    ),
    "Prodigy": (
        PHOTOS,
        {
            "x.jsonl": write_lines(
                *({"image": k, "accept": [v], "answer": "accept"} for k, v in LABELS.items())
            )
        },
        r"x.jsonl may have the classes in 'accept', 'answer': pass --label-column",
    ),
    "boxes of Create ML": (
        PHOTOS,
        {
            "annotations.json": json.dumps(
                [{"image": k, "annotations": [{"label": v}]} for k, v in LABELS.items()]
            )
        },
        r"annotations.json has objects with values of their own in 'annotations', and no column",
    ),
    "images within a table (Hugging Face)": (
        "",
        {"data/train-00000-of-00001.parquet": "PAR1"},
        r"'data/train-\S+.parquet' is not read: save its images as files, one folder for each",
    ),
    "TFRecord": ("", {"train.tfrecord": ""}, r"'train.tfrecord' is not read: save its images as"),
    "NumPy": ("", {"photos.npz": ""}, r"'photos.npz' is not read: train on it as arrays"),
    "Teachable Machine": (
        "",
        {"Class 1-samples.zip": "", "Class 2-samples.zip": ""},
        r"if 'Class 1-samples.zip' and 1 other archive have the images, unpack each into a folder "
        r"of its own, as with `.*python.* -m zipfile -e '.*/Class 1-samples.zip' '.*/Class 1-sam",
    ),
    "a shard of WebDataset": (
        "",
        {"shard-0000.tar": ""},
        r"if 'shard-0000.tar' has the images, .* `mkdir \S*/shard-0000 && tar -xf \S*0.tar -C \S",
    ),
    "sites as folders beside a table": (
        "hill/1.jpg river/2.jpg",
        {"animals.csv": write_table("image,label", "1.jpg,elk", "2.jpg,fox")},
        r"'hill/1.jpg' has the class 'hill' by its folder and 'elk' in animals.csv: pass --layout",
    ),
    # What other programs and people write.
    "an image of several categories": (
        PHOTOS,
        {
            "a.json": write_coco(["0.jpg", "1.jpg"], ["cat", "dog"]).replace(
                '"image_id": 1', '"image_id": 0'
            )
        },
        r"a.json gives '0.jpg' several classes, 'cat', 'dog'",
    ),
    "names of classes alone": (
        PHOTOS,
        {"label_map.json": json.dumps({"0": "cat", "1": "dog", "2": "owl"})},
        "only the class 'photos'",
    ),
    "a file beside each image that is no table of all": (
        PHOTOS,
        {f"photos/{i}.txt": write_table("file,label", "0.jpg,a", "1.jpg,b") for i in range(30)},
        "only the class 'photos'",
    ),
    "a fault in the table of one part": (
        " ".join(f"{part}/{i}.jpg" for part in ("train", "valid") for i in range(3)),
        {
            f"{part}/_annotations.csv": write_table(
                "file,label", "0.jpg,a", "1.jpg,b", f"2.jpg,{last}"
            )
            for part, last in (("train", "b"), ("valid", "a;b"))
        },
        r"valid/_annotations.csv gives '2.jpg' several classes",
    ),
    "an image with boxes of several classes": (
        "0.jpg 1.jpg 2.jpg",
        write_each("{}.txt", f"0 {BOX}", f"1 {BOX}", f"0 {BOX}\n1 {BOX}\n"),
        r"\*.txt gives '2' several classes, '0', '1'",
    ),
    "a description beside an image, and boxes beside others": (
        "0.jpg 1.jpg 2.jpg",
        write_each("{}.txt", f"0 {BOX}", f"1 {BOX}", "a description\n"),
        "no labeled image",
    ),
    "captions beside each image": (
        "0.jpg 1.jpg 2.jpg",
        write_each("{}.txt", *["a photo of a hat\n"] * 3),
        r"^cls-jax label .* asks for labels",
    ),
    "what a photo service knows of each photo": (
        "0.jpg 1.jpg 2.jpg",
        write_each("{}.jpg.json", *[{"title": "0.jpg", "imageViews": "0"}] * 3),
        r"^cls-jax label .* asks for labels",
    ),
    "different folders are not left out of names": (
        "1.png 2.png",
        {"labels.csv": write_table("file,label", "a/1.png,cat", "b/1.png,dog", "a/2.png,cat")},
        r"No row of labels.csv names an image",
    ),
    **{
        f"several classes in lines of a cell, {cell!r}": (
            PHOTOS,
            {"labels.csv": f"file,label\n0.jpg,{cell}\n1.jpg,b\n2.jpg,a\n"},
            "several classes, 'a', 'b'",
        )
        for cell in ('"a\nb"', '"a\r\nb"', "a\tb")
    },
    **{
        f"names that fit no file, {remedy}": (
            name,
            {"labels.csv": write_table("file,label", f"{cell},a")},
            f"the folder has '{name}'.*{remedy}",
        )
        for name, cell, remedy in (
            ("1.jpg", "1.png", "the extensions of the files"),
            ("IMG_001.jpg", "IMG_1", "all their zeros"),
            ("x.jpg", "y.jpg", "relative to the folder"),
        )
    },
    **{
        f"a spreadsheet, {name}": (
            PHOTOS,
            {name: ""},
            f"if '{name}' has the labels, save it as labels.csv",
        )
        for name in ("labels.xlsx", "labels.ods")
    },
}
# Several tags of an image.
CAT_DOG = {"0.png": "cat;dog", "1.png": "dog", "2.png": "bird"}
COCO = {
    "images": [{"id": i, "file_name": f"{i}.png"} for i in range(3)],
    "categories": [{"id": i, "name": name} for i, name in enumerate(["cat", "dog", "bird"])],
    "annotations": [
        {"image_id": image, "category_id": name}
        for image, name in [(0, 1), (0, 0), (0, 1), (1, 1), (2, 2)]
    ],
}
TASKS = [
    {
        "data": {"image": file},
        "annotations": [
            {
                "result": [
                    {
                        "type": "choices",
                        "from_name": "c",
                        "value": {"choices": label.split(";")},
                    }
                ]
            }
        ],
    }
    for file, label in CAT_DOG.items()
]
FIFTYONE = {"classes": ["cat", "dog", "bird"], "labels": {"0": [0, 1], "1": 1, "2": [2]}}
SAMPLES = {
    "samples": [
        {
            "filepath": file,
            "ground_truth": {
                "_cls": "Classifications",
                "classifications": [{"label": tag} for tag in label.split(";")],
            },
        }
        for file, label in CAT_DOG.items()
    ]
}
CVAT = "".join(
    f'<image name="{file}">{"".join(f"<tag label={tag!r}/>" for tag in label.split(";"))}</image>'
    for file, label in CAT_DOG.items()
)
# How programs write several tags of an image → the name of a file, and its text.
FORMS = {
    "semicolons": ("x.csv", "file,label\n0.png,dog;cat\n1.png,dog\n2.png,bird\n"),
    "bars": ("x.csv", "file,label\n0.png,cat | dog\n1.png,dog\n2.png,bird\n"),
    "commas": ("x.csv", 'file,label\n0.png,"cat, dog"\n1.png,dog\n2.png,bird\n'),
    "blanks": ("x.csv", "file,tags\n0.png,cat dog\n1.png,dog\n2.png,bird\n"),
    "a list": ("x.csv", "file,label\n0.png,\"['cat', 'dog']\"\n1.png,['dog']\n2.png,bird\n"),
    "a row per tag": ("labels.csv", "file,label\n0.png,cat\n1.png,dog\n0.png,dog\n2.png,bird\n"),
    "0 and 1": ("x.csv", "file,bird,cat,dog\n0.png,0,1,1\n1.png,0,0,1\n2.png,1,0,0\n"),
    "numbers": ("x.csv", "file,label\n0.png,0;1\n1.png,1\n2.png,2\n"),
    "COCO": ("x.json", json.dumps(COCO)),
    "Label Studio": ("x.json", json.dumps(TASKS)),
    "FiftyOne": ("labels.json", json.dumps(FIFTYONE)),
    "FiftyOne's samples": ("samples.json", json.dumps(SAMPLES)),
    "CVAT": ("x.xml", f"<annotations>{CVAT}</annotations>"),
    "JSON lines": (
        "metadata.jsonl",
        "\n".join(
            json.dumps({"file_name": file, "label": label.split(";")})
            for file, label in CAT_DOG.items()
        ),
    ),
}
_TABLES = {
    form: {name: text} | ({"classes.txt": "cat\ndog\nbird\n"} if form == "numbers" else {})
    for form, (name, text) in FORMS.items()
}
READ |= {
    f"tags: {form}": (" ".join(CAT_DOG), files, CAT_DOG, "tags in", (), {"tags": True})
    for form, files in _TABLES.items()
}
READ["a row per tag, without the option"] = (
    " ".join(CAT_DOG),
    _TABLES["a row per tag"],
    CAT_DOG | {"0.png": "dog"},
    "",
    ("Pass --tags",),
)
# Words of a single cell may be the name of a class, and the last row counts.
ASKED |= {
    f"tags without the option: {form}": (
        " ".join(CAT_DOG),
        files,
        "pass --tags if images may have several",
    )
    for form, files in _TABLES.items()
    if form not in ("blanks", "a row per tag", "commas")
}
