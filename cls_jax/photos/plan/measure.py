"""What is found out about a planned run: a few real steps, how long it may take, and facts.

Sentences about a plan need these facts, which are looked up and tried before one is written.
"""

import bisect
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import statistics
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from cls_jax.config import validate_config
from cls_jax.data.datasets import load_dataset
from cls_jax.data.label_split import (
    choose_unlabeled_indices,
    choose_validation_indices,
)
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.resize import ImageError, get_decode_options, get_image_shape
from cls_jax.data.sampling import take_evenly, take_rows
from cls_jax.data.types import Dataset
from cls_jax.models.weights.backbones import BACKBONES
from cls_jax.models.weights.sources import Origin
from cls_jax.parallel.distributed import from_main_process
from cls_jax.parallel.preemption import leave_when_asked
from cls_jax.photos.features.copies import look_alike
from cls_jax.photos.features.network import open_network
from cls_jax.photos.folder.dataset import FolderSummary, load_sample, open_dataset
from cls_jax.photos.folder.sources import NUM_NAMES, propose_copies, propose_origins
from cls_jax.photos.images.decode import read_origin, read_upright
from cls_jax.photos.plan.contention import ContentionMeter
from cls_jax.photos.plan.estimate import ENOUGH_STEPS, Budget, Measurement, guess_step
from cls_jax.photos.plan.rules import (
    MAX_DEFAULT_STEPS,
    Plan,
    describe_absent_partner,
    find_affordable_steps,
    fit,
    list_sizes,
)
from cls_jax.photos.start.frozen import (
    PHOTO_WEIGHT_READERS,
    compute_run_features,
    find_native_size,
    read_native_network,
    read_networks,
)
from cls_jax.photos.start.hold_out import choose_checked_or_sources
from cls_jax.photos.start.stages import needs_labels
from cls_jax.runs.folder import CONFIG, describe_weights, use_mean_and_std
from cls_jax.training.prepare import (
    ChosenImages,
    choose_images,
    create_setup,
    read_weights,
    resolve_model,
    use_stored_normalization,
)
from cls_jax.training.step import compile_step, create_train_step

# The default number of minutes, by whether there is an accelerator.
_ACCELERATOR_MINUTES, _CPU_MINUTES = 30.0, 10.0
_MAX_STEPS = 20_000
_NUM_STEPS, _NUM_SAMPLED = 5, 64
_ENOUGH_SECONDS = 10.0  # After this, three steps suffice, and a slowdown is not left to chance.
_COMPILE_SECONDS = 15.0  # Of a step, before it is compiled (two cores).
_MOST_MINUTES = 1_000_000
_SHARE = 0.9  # Of the minutes that a plan asks for: the next measurement may be slower.
_SIDE = 128  # Pixels of images that may be copies of each other.
_NUM_READ = 200  # Images whose camera or patient a dry run looks for.


def fit_to_time(plan: Plan, minutes: float | None) -> Plan:
    """The plan of a run that takes so many minutes, if there is anything for the time to decide.

    Time decides the number of steps, and for weights of the table of backbones resolution and
    batch size, unless the user has set them. The most likely choice is measured, because the run
    then has no other program to compile: the highest resolution on an accelerator, and on a CPU
    what the time of a prediction suggests. All but the number of steps is validated first.
    `minutes` is the time for the whole training. None for the default, which exists only for
    weights of that table, and is longer where it would be too short for a training that is worth
    having. Minutes that are too short are refused: see `Plan.needed_minutes`. Raises as
    `measure_run` and `validate_config` do.
    """
    is_known = plan.config.model.init in BACKBONES
    if "num_steps" in plan.set_by_user or (minutes is None and not is_known):
        return plan
    is_fast, max_steps = plan.resources.has_accelerator, _MAX_STEPS
    if is_open := minutes is None:
        minutes = _ACCELERATOR_MINUTES if is_fast else _CPU_MINUTES
        max_steps = MAX_DEFAULT_STEPS
    likely, sizes = plan, list_sizes(plan)
    if is_known:
        num_steps = MAX_DEFAULT_STEPS if is_fast else ENOUGH_STEPS
        likely = _suppose(plan, num_steps, max(sizes))
    validate_config(resolve_model(likely.choose({"num_steps": max_steps}).config))
    started = time.monotonic()
    if is_known and not is_fast and len(sizes) > 1:
        likely = _suppose(plan, num_steps, _guess_size(plan, likely.config, 60 * minutes))
    measured = measure_run(resolve_model(likely.config), plan.summary)
    # Measured times differ between processes.
    values, spent = from_main_process([dataclasses.asdict(measured), time.monotonic() - started])
    budget = Budget(
        seconds=60 * minutes,
        spent=spent,
        max_steps=max_steps,
        measured=Measurement(**values),
        summary=plan.summary,
        config=likely.config,
        began=started,
    )
    fitted = fit(dataclasses.replace(plan, budget=budget))
    longer, needed = _lengthen(fitted)
    if needed is None or is_open:
        reason = _explain(longer, sizes)
        if needed is not None:
            reason += " A shorter training would not be worth having here."
        return dataclasses.replace(longer, reason=reason)
    reason = (
        f"{minutes:.3g} minutes are too short for a training that is worth having on this machine "
        f"now: about {needed:,} minutes are needed."
    )
    return dataclasses.replace(fitted, reason=reason, needed_minutes=needed)


def _suppose(plan: Plan, num_steps: int, image_size: int) -> Plan:
    """The plan if these were set."""
    supposed = {"num_steps": num_steps, "data.image_size": image_size}
    return fit(plan.choose(supposed, set_by_user=plan.set_by_user | supposed.keys()))


def _guess_size(plan: Plan, config: ConfigDict, seconds: float) -> int:
    """The resolution that so much time will probably allow, by the time of a prediction."""
    predict_seconds = time_prediction(config)
    guessed = Measurement(
        compile_seconds=_COMPILE_SECONDS,
        step_seconds=guess_step(config, predict_seconds),
        memory="",
        image_size=find_native_size(config),
        batch_size=config.batch_size,
        feature_seconds=predict_seconds,
    )
    budget = Budget(seconds, _COMPILE_SECONDS, _MAX_STEPS, guessed, plan.summary, config)
    return int(fit(dataclasses.replace(plan, budget=budget)).config.data.image_size)


def is_too_short(plan: Plan) -> bool:
    """Whether the time leaves no room for a training from pretrained weights that is worth having.

    That is fewer than 40 steps of the smallest batch at the lowest resolution.
    """
    if plan.budget is None or plan.config.model.init not in BACKBONES:
        return False
    return plan.config.num_steps < ENOUGH_STEPS and not plan.budget.is_enough(
        plan.config, plan.config.data.image_size, plan.config.batch_size
    )


def _lengthen(plan: Plan) -> tuple[Plan, int | None]:
    """The plan with as many minutes as a training that is worth having needs, and these minutes.

    The same plan and None if the time is enough.
    """
    if not is_too_short(plan):
        return plan, None
    budget = plan.budget
    assert budget is not None, "only where time decides"

    def allow(minutes: float) -> Plan:
        longer = dataclasses.replace(budget, seconds=60 * minutes)
        return fit(dataclasses.replace(plan, budget=longer))

    def is_enough(minutes: int) -> bool:
        return not is_too_short(allow(_SHARE * minutes))

    needed = bisect.bisect_left(range(_MOST_MINUTES), True, lo=1, key=is_enough)
    return allow(needed), needed


def start_in_time(plan: Plan) -> tuple[Plan, Dataset | None]:
    """Decodes the images of a plan whose time is given, computes their features, and plans again.

    How long this takes is hard to foresee. Once it is over, the number of steps follows from the
    time that is left, and the speed of steps from how busy the machine was meanwhile, which may be
    minutes. Resolution and images stay as they are. The run finds all of it in the store. If the
    rest of the time is too short for a training that is worth having, the run takes longer. Returns
    the plan with its new sentence, and the images, or the same plan and None if no time is given.
    Raises the same as the run would.
    """
    if plan.budget is None:
        return plan, None
    began = time.monotonic()
    with leave_when_asked(), ContentionMeter() as contention:
        dataset = _decode_and_extract(plan)
    ended = time.monotonic()
    took, slowdown, spent = from_main_process(
        [ended - began, contention.slowdown, ended - plan.budget.began]
    )
    measured = plan.budget.measured
    if jax.default_backend() == "cpu" and took >= _ENOUGH_SECONDS:
        alone = measured.step_seconds / measured.slowdown
        measured = dataclasses.replace(measured, step_seconds=alone * slowdown, slowdown=slowdown)
    fixed = {"model.inferred_images", "data.image_size"}
    budget = dataclasses.replace(
        plan.budget, spent=spent, measured=measured, num_decoded=len(dataset.train)
    )
    fitted, needed = _lengthen(
        fit(dataclasses.replace(plan, budget=budget, set_by_user=plan.set_by_user | fixed))
    )
    fit_the_rest = "fit the rest of the time"
    if needed is not None:
        fit_the_rest = f"are the fewest worth training, for {needed:,} minutes in all"
    config = fitted.config
    step = measured.estimate_step(config.data.image_size, config.batch_size)
    busy = measured.describe_slowdown()
    reason = (
        f"Decoding and features took {took:.0f} s: {config.num_steps:,} steps of about "
        f"{step:.2f} s {fit_the_rest}.{f' {busy}' if busy else ''}"
    )
    is_same = config.num_steps == plan.config.num_steps and needed is None
    shown = None if is_same else reason
    return dataclasses.replace(fitted, set_by_user=plan.set_by_user, reason=shown), dataset


def _decode_and_extract(plan: Plan) -> Dataset:
    """What a run does with its images before it fits heads, so that the store has the results."""
    config = resolve_model(plan.config)
    whole = open_dataset(config, plan.summary.layout)
    dataset, labeled, unlabeled = choose_images(config, plan.workdir, lambda _: whole)
    if needs_labels(config) and config.model.init:
        read = functools.partial(read_weights, config.model.init, PHOTO_WEIGHT_READERS)
        dataset = use_stored_normalization(config, dataset, read)
        networks = read_networks(
            use_mean_and_std(config, dataset.mean, dataset.std),
            read(),
            find_native_size(config),
            channels=dataset.image_shape[-1],
        )
        compute_run_features(config, dataset, labeled, unlabeled, networks)
    return whole


def _explain(plan: Plan, sizes: list[int]) -> str:
    """Sentences about what the time has decided, and why."""
    budget, config = plan.budget, plan.config
    assert budget is not None, "the time has decided"
    size, measured = config.data.image_size, budget.measured
    step = measured.estimate_step(size, config.batch_size)
    left = budget.estimate_left(config, size, config.batch_size, config.num_steps)
    is_short = config.num_steps < (find_affordable_steps(plan) or 0)
    is_long = not is_short and left < config.num_steps * step
    seconds = budget.seconds
    if is_short or is_long:
        seconds = seconds - left + config.num_steps * step
    sentences = [
        f"{seconds / 60:.3g} minutes{', more than requested' if is_long else ''}: "
        f"{config.num_steps:,} steps of about {step:.2f} s at {size} pixels with "
        f"{config.batch_size} labeled images each, and {budget.seconds - left:.0f} s for "
        "everything else.",
        "More steps would not help with so few labels." if is_short else None,
        f"At more than {size} pixels, there is no time for {ENOUGH_STEPS} steps."
        if size < max(sizes)
        else None,
        f"There is time for only {config.model.inferred_images:,} unlabeled images in the graph."
        if config.model.inferred_images
        else None,
        describe_absent_partner(plan),
        measured.describe_slowdown(),
    ]
    return " ".join(filter(None, sentences))


def time_prediction(config: ConfigDict) -> float:
    """Seconds in which the pretrained network predicts an image of its native resolution."""
    return open_network(read_native_network(config, get_image_shape(config.data)[-1])).time()


def measure_run(config: ConfigDict, summary: FolderSummary) -> Measurement:
    """Compiles the step of a run and takes a few on a sample of its images. Writes nothing.

    The run finds the program in the cache of compiled programs, if `Budget.is_compiled` says so.
    Raises a UserError if pretrained weights cannot be read, the step does not fit into the device's
    memory, or the devices cannot be arranged as `config.mesh` says.
    """
    shape = get_image_shape(config.data)
    (dataset, labeled, unlabeled), decode_seconds = _load_few(config, summary)
    read = functools.partial(read_weights, config.model.init, PHOTO_WEIGHT_READERS)
    dataset = use_stored_normalization(config, dataset, read)  # A constant in the program.
    setup, stream = create_setup(config, dataset, labeled, unlabeled, read)
    inputs, input_specs, create_batch = create_pipeline(stream, dataset, setup.mesh, 0, _NUM_STEPS)
    step: Any = create_train_step(setup, create_batch, input_specs)
    with contextlib.closing(inputs):
        state, step_input, schedule = setup.init_state(), next(inputs), setup.put_schedule()
        device = jax.local_devices()[0]
        compiled, compile_seconds, memory = compile_step(step, state, step_input, schedule, device)
        seconds = []
        with ContentionMeter() as contention:
            for i in range(_NUM_STEPS):
                started = time.perf_counter()
                if i:
                    step_input = next(inputs)
                state, metrics = compiled(state, step_input, schedule)
                jax.block_until_ready((state, metrics))
                seconds.append(time.perf_counter() - started)
                if len(seconds) > 2 and sum(seconds) > _ENOUGH_SECONDS:
                    break
    feature_seconds = other_seconds = 0.0
    if config.model.init and config.method.get("inferred"):
        networks = read_networks(setup.config, read(), find_native_size(config), channels=shape[-1])
        feature_seconds, *rest = (open_network(network).time() for network in networks)
        other_seconds = sum(rest)
    return Measurement(
        compile_seconds=compile_seconds,
        step_seconds=statistics.median(seconds[1:]),
        memory=memory,
        image_size=config.data.image_size,
        batch_size=config.batch_size,
        decode_seconds=decode_seconds,
        feature_seconds=feature_seconds,
        other_seconds=other_seconds,
        slowdown=1.0 if jax.default_backend() != "cpu" else contention.slowdown,
        num_images=len(dataset.train),
    )


def _load_few(config: ConfigDict, summary: FolderSummary) -> tuple[ChosenImages, float]:
    """A few images in place of all of a run's, and the seconds in which one was decoded.

    As many are labeled, unlabeled and held out as in the run, because shapes in the program of the
    step depend on these numbers. Which ones are makes no difference.
    """
    options, shape = get_decode_options(config.data), get_image_shape(config.data)
    started = time.perf_counter()
    few = load_sample(summary, shape, _NUM_SAMPLED, options)
    seconds = time.perf_counter() - started
    seconds /= sum(min(n, _NUM_SAMPLED) for n in (summary.num_labeled, summary.num_unlabeled))
    dataset = load_dataset(config, {config.data.name: lambda _: few})
    known = np.flatnonzero(dataset.train.labels >= 0).astype(np.int32)
    labeled = take_rows(known, config.num_labels or len(known))
    everything = np.arange(len(dataset.train), dtype=np.int32)
    includes_labeled = config.data.unlabeled_includes_labeled
    unlabeled = choose_unlabeled_indices(everything, labeled, includes_labeled)
    return ChosenImages(dataset, labeled, unlabeled), seconds


class Facts(NamedTuple):
    """What is known of a plan besides its configuration."""

    origins: tuple[Origin, ...] = ()  # Of its pretrained weights.
    is_begun: bool = False  # Whether its folder has this run already.
    # None if nothing was tried, nothing is trained, or only another step was measured.
    measured: Measurement | None = None
    held_out: tuple[int, ...] = ()  # Labels of each class for validation, if they were counted.
    sources: str = ""  # A sentence that proposes some by what is in the images, or "".


def gather_facts(plan: Plan) -> Facts:
    """Looks up what is known of a plan. Downloads and opens nothing."""
    weights = describe_weights(plan.config).get("weights", [])
    return Facts(
        origins=tuple(Origin(**entry) for entry in weights),
        is_begun=(plan.workdir / CONFIG).exists(),
    )


def try_plan(plan: Plan) -> Facts:
    """The same with what a dry run finds out: times a few steps. Writes no file of the run.

    Raises a UserError if weights cannot be read, or as `measure_run` does.
    """
    config, budget, measured = resolve_model(plan.config), plan.budget, None
    if plan.method is None:  # Measuring would read the weights.
        weights = read_weights(config.model.init, PHOTO_WEIGHT_READERS)
        read_networks(config, weights, config.data.image_size, config.data.channels)
    elif budget is None:
        measured = measure_run(config, plan.summary)
    elif plan.needed_minutes is None and budget.is_compiled(
        config.data.image_size, config.batch_size, config.num_steps
    ):
        measured = budget.measured
    return gather_facts(plan)._replace(
        measured=measured, held_out=count_held_out(plan), sources=propose_sources(plan.summary)
    )


def count_held_out(plan: Plan) -> tuple[int, ...]:
    """The labels of each class that `data.validation` holds out, or nothing without it.

    Raises a UserError if it holds out none.
    """
    config, layout = plan.config, plan.summary.layout
    if not config.data.validation:
        return ()
    labels, num_classes = layout.train.labels, len(layout.class_names)
    files = [file.name for file, _ in layout.train]
    sources = layout.sources.numbers if layout.sources else None
    rows = choose_checked_or_sources(config, files, labels, sources)
    if rows is None:
        rows = choose_validation_indices(labels, num_classes, config.data.validation, config.seed)
    known = labels[rows][labels[rows] >= 0]
    return tuple(np.bincount(known, minlength=num_classes).tolist())


def propose_sources(summary: FolderSummary) -> str:
    """A sentence about copies, cameras or patients that some training images show, or ""."""
    layout, root = summary.layout, summary.root
    if layout.sources is not None or layout.proposal:
        return ""
    names = [file.name for file, _ in itertools.islice(layout.train, NUM_NAMES)]
    if sentence := propose_copies(names, functools.partial(_are_alike, root)):
        return sentence
    sampled = take_evenly(layout.train, _NUM_READ)
    return propose_origins([read_origin(root / file.name) for file, _ in sampled]) or ""


def _are_alike(root: pathlib.Path, name: str, copy: str) -> bool:
    """Whether the second of two images seems to be a copy of the first one. Not if unreadable."""
    try:
        return look_alike(read_upright(root / copy, _SIDE), read_upright(root / name, _SIDE))
    except ImageError:
        return False
