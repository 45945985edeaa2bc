"""Programs that label the same photographs until they are killed, and a check of the outcome.

python writers.py FOLDER NAME SEED answers as a session named NAME or, for "other", as a program
that only appends rows, and prints each answer once it is saved.
"""

import collections
import csv
import os
import pathlib
import random
import signal
import sys
import time

import numpy as np
from scipy import sparse

from cls_jax.data.images.files import list_images
from cls_jax.data.sources.folder_layout import read_layout
from cls_jax.data.sources.label_table import LABELS_CSV
from cls_jax.labeling import session as session_module
from cls_jax.labeling.answers import RefusedError
from tests.labeling.sessions import CLASSES, decide, open_ready

NUM_IMAGES = 30
NAMES = [f"IMG_{i:04}.png" for i in range(NUM_IMAGES)]
KINDS = [i % len(CLASSES) for i in range(NUM_IMAGES)]
WRITERS = ("one", "two", "other")


def write(folder: pathlib.Path, name: str, seed: int) -> None:
    rng = random.Random(seed)
    # The graph would take each process a second to compile.
    session_module.build_graph = lambda features: sparse.csr_matrix(np.eye(len(features)))
    session = None if name == "other" else open_ready(folder, KINDS)
    while True:
        time.sleep(rng.uniform(0, 0.04))  # Without a pause, no other program would get the lock.
        image = rng.randrange(NUM_IMAGES)
        label = "" if rng.random() < 0.1 and session else f"{CLASSES[KINDS[image]]} by {name}"
        if session is None:
            append(folder / LABELS_CSV, f"{NAMES[image]},{label}\n")
        else:
            try:
                decide(session, image, label, name, "label" if label else "none")
            except RefusedError:  # The other session was faster.
                continue
        print(f"{NAMES[image]},{label}", flush=True)


def append(path: pathlib.Path, row: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, row.encode())
    os.close(descriptor)


def run_and_kill(start, folder: pathlib.Path, num_answers: int, seconds: float) -> list:
    """Starts all writers, and starts each again that is killed, until there are enough answers.

    Each lives up to some seconds. Returns all programs, of which none is alive.
    """
    rng, started, alive = random.Random(0), [], {}
    try:
        while sum(program.read().count("\n") for program in started) < num_answers:
            for name in WRITERS:
                program, end = alive.get(name, (None, 0.0))
                if program and program.poll() is not None:
                    raise AssertionError(program.finish())
                if time.monotonic() > end:
                    if program:
                        program.kill(signal.SIGKILL)
                    seed = rng.randrange(2**32)
                    program = start(folder, name, seed, program=pathlib.Path(__file__))
                    alive[name] = program, time.monotonic() + seconds * rng.uniform(0.1, 1)
                    started.append(program)
            time.sleep(0.05)
    finally:
        for program in started:
            if program.poll() is None:
                program.kill(signal.SIGKILL)
    for program in started:
        while program.poll() is None:
            time.sleep(0.01)
    return started


def check(folder: pathlib.Path, programs, rows_before) -> tuple[int, int]:
    """Checks that no printed answer is lost, and no label is on another file.

    Returns the numbers of answers that were reported as saved, and of rows.
    """
    reported = collections.Counter(rows_before)
    for program in programs:
        lines = program.read().split("\n")[:-1]  # The last line may have been cut short.
        reported.update(tuple(line.split(",")) for line in lines)
    with (folder / LABELS_CSV).open(newline="") as file:
        _, *rows = csv.reader(file)
    saved = collections.Counter((row[0], row[1]) for row in rows)
    assert not reported - saved
    assert {len(row) for row in rows} <= {2, 4}
    last = {name: label for name, label, *_ in rows}  # The last row of each file counts.
    assert all(label.split(" ")[0] in ("", CLASSES[KINDS[NAMES.index(n)]]) for n, label in saved)
    session = open_ready(folder, KINDS)
    states = {image["name"]: image["label"] for image in map(session.describe_image, range(30))}
    assert {name: states[name] for name in last} == last
    layout = read_layout(folder, list_images(folder))
    assert {file.name: label for file, label in layout.train if label} == {
        name: label for name, label in last.items() if label
    }
    return reported.total(), len(rows)


if __name__ == "__main__":
    root, writer, number = sys.argv[1:]
    write(pathlib.Path(root), writer, int(number))
