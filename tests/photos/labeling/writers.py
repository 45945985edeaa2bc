"""Programs that label the same photos until they are killed, and a check of the outcome.

python writers.py FOLDER NAME SEED answers as a session named NAME or, for "other", as a program
that only appends rows, and prints each answer once it is saved.
"""

import os
import pathlib
import random
import signal
import sys
import time

import numpy as np

from cls_jax.photos.features import relations
from cls_jax.photos.features.neighbors import Neighbors
from cls_jax.photos.folder.label_table import LABELS_CSV
from cls_jax.photos.labeling.answers import RefusedError
from tests.photos.labeling.sessions import CLASSES, decide, open_ready

NUM_IMAGES = 30
NAMES = [f"IMG_{i:04}.png" for i in range(NUM_IMAGES)]
WRITERS = ("one", "two", "other")
KINDS = [i % len(CLASSES) for i in range(NUM_IMAGES)]
NO_NEIGHBORS = Neighbors(np.zeros((NUM_IMAGES, 0), int), np.zeros((NUM_IMAGES, 0)))


def write(folder: pathlib.Path, name: str, seed: int) -> None:
    rng = random.Random(seed)
    # The graph would take each process a second to compile.
    relations.find_neighbors = lambda *_: NO_NEIGHBORS
    session = None if name == "other" else open_ready(folder, KINDS)
    while True:
        time.sleep(rng.uniform(0, 0.04))  # Without a pause, no other program would get the lock.
        image = rng.randrange(NUM_IMAGES)
        label = "" if rng.random() < 0.1 and session else f"{CLASSES[KINDS[image]]} by {name}"
        if session is None:
            descriptor = os.open(folder / LABELS_CSV, os.O_WRONLY | os.O_APPEND)
            os.write(descriptor, f"{NAMES[image]},{label}\n".encode())
            os.close(descriptor)
        else:
            try:
                decide(session, image, label, name, "label" if label else "none")
            except RefusedError:  # The other session was faster.
                continue
        print(f"{NAMES[image]},{label}", flush=True)


def run_and_kill(start, folder: pathlib.Path, num_answers: int, num_kills: int) -> list[list[str]]:
    """Rows that were reported as saved. No program is alive any more.

    Three programs write. Each time one has saved some answers, it is killed and started again.
    """
    rng, alive, killed = random.Random(0), {}, []

    def kill(name):
        program = alive.pop(name)
        killed.append(program)
        if program.poll() is None:
            program.kill(signal.SIGKILL)
        program.finish()

    try:
        for i in range(num_kills):
            for name in set(WRITERS) - alive.keys():
                seed = rng.randrange(2**32)
                alive[name] = start(folder, name, seed, program=pathlib.Path(__file__))
            name, enough = WRITERS[i % 3], rng.randrange(num_answers)
            alive[name].wait_until(lambda name=name, n=enough: alive[name].read().count("\n") >= n)
            kill(name)
    finally:
        for name in [*alive]:
            kill(name)
    assert {program.poll() for program in killed} == {-signal.SIGKILL}
    lines = [line for program in killed for line in program.read().split("\n")[:-1]]  # Whole ones.
    return [line.split(",") for line in lines]


if __name__ == "__main__":
    root, writer, number = sys.argv[1:]
    write(pathlib.Path(root), writer, int(number))
