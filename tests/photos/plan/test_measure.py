"""`--minutes`: what is chosen from the time of a step."""

import contextlib
import dataclasses
import math
import re
import types

import pytest

from cls_jax.config import flatten, validate_config
from cls_jax.errors import UserError
from cls_jax.photos.cli import commands
from cls_jax.photos.plan import measure, plan
from cls_jax.photos.plan.estimate import Measurement, guess_step
from cls_jax.photos.plan.plan import Request
from cls_jax.photos.plan.rules import create_folder_config, fit
from cls_jax.photos.start.stages import train_with_stages
from tests.compiled import record_programs
from tests.conftest import one_of
from tests.core.methods.tiny_model import use_tiny_model
from tests.outcomes import count_calls
from tests.photos.helpers import write_images
from tests.photos.plan.test_rules import CPU, PRETRAINED, create_plan, create_summary


def make_up_times(patch, compile_seconds, step_seconds, *of_an_image):
    """Lets every run be measured with these times: compiling networks would take seconds."""

    def measure_run(config, summary):
        sizes = config.data.image_size, config.batch_size
        return Measurement(compile_seconds, step_seconds, "little", *sizes, *of_an_image)

    patch.setattr(measure, "measure_run", measure_run)


def choose(
    patch,
    seconds,
    minutes=None,
    resources=PRETRAINED,
    side=500,
    per_image=0,
    folder=(),
    changes=None,
    compile_seconds=1.0,
    guess=1.0,
    now=lambda: 0.0,
    **settings,
):
    """What is chosen and said where a step at 128 pixels takes these seconds.

    Decoding and features take `per_image` seconds each, and a step is guessed to take `guess` times
    as long as it does. `changes` is applied to the plan, and `now` is the time without compiling.
    """
    compiled = []

    def measure_run(config, summary):
        compiled.append(compile_seconds)
        size = config.data.image_size
        return Measurement(
            compile_seconds=compile_seconds,
            step_seconds=seconds * (size / 128) ** 2,
            memory="",
            image_size=size,
            batch_size=config.batch_size,
            decode_seconds=per_image,
            feature_seconds=per_image,
            num_images=summary.num_labeled + summary.num_unlabeled,
        )

    def time_prediction(config):
        at_native_size = seconds * (224 / 128) ** 2
        return guess * at_native_size / guess_step(config, 1.0)

    patch.setattr(measure, "measure_run", measure_run)
    patch.setattr(measure, "time_prediction", time_prediction)
    patch.setattr(measure.time, "monotonic", lambda: now() + sum(compiled))
    summary = create_summary(side, 3_000)._replace(**dict(folder))
    plan = fit(create_plan(summary, resources, settings.pop("method", "cls"), **settings))
    plan = measure.fit_to_time(plan, minutes)
    validate_config(plan.config)
    return plan.config, plan.reason if changes is None else changes(plan)


@pytest.mark.parametrize(
    ("seconds", "minutes", "image_size", "batch_size"),
    [
        *((1.0, None, 224, 8), (0.3, None, 224, 8), (0.1, 2.0, 224, 8), (3.0, 10.0, 160, 8)),
        *((6.0, 10.0, 128, 8), (20.0, 10.0, 96, 4)),
    ],
)
def test_time_buys_resolution_then_steps(monkeypatch, seconds, minutes, image_size, batch_size):
    config, sentence = choose(monkeypatch, seconds, minutes, per_image=0.01)
    assert (config.data.image_size, config.batch_size) == (image_size, batch_size)
    assert f"at {image_size} pixels with {batch_size} labeled" in sentence
    found = re.search(
        r"([\d,]+) steps of about ([\d.]+) s .* ([\d,]+) s for everything else", sentence
    )
    num_steps, step, rest = (float(text.replace(",", "")) for text in found.groups())
    assert num_steps == config.num_steps
    total = 60 * (minutes or 10)
    # Steps are chosen in twenties, and a step's time is rounded to 0.01 s.
    assert rest > 25
    assert total - 20 * step - 5 <= num_steps * step + rest <= total + 5
    # What depends on the number of steps follows.
    assert config.eval_every == min(math.ceil(num_steps / 3), 500)


@pytest.mark.parametrize("seconds", [0.3, 3.0, 20.0])
def test_a_guess_decides_what_is_measured_and_not_what_is_chosen(monkeypatch, seconds):
    sizes = []
    for guess in (1.0, 0.01, 100.0):
        config, budget = choose(
            monkeypatch,
            seconds,
            10.0,
            per_image=seconds / 120,
            compile_seconds=15.0,
            guess=guess,
            changes=lambda plan: plan.budget,
        )
        sizes.append((config.data.image_size, budget.measured.image_size))
    assert sizes[0][0] == sizes[0][1]  # What was compiled is what runs.
    assert {chosen for chosen, _ in sizes} == {sizes[0][0]}
    assert [measured for _, measured in sizes[1:]] == [224, 96]


def test_planning_by_time_builds_few_configurations(monkeypatch):
    """Not one for each key: a configuration is built in milliseconds."""
    with count_calls(create_folder_config) as counts:
        choose(monkeypatch, 1.0, 10.0, per_image=0.01)
    assert counts["create_folder_config"] <= 18


def take_time(patch, took, slowdown):
    """Lets features take so many seconds on a machine that is so busy: the images, and a clock."""
    clock, busy = [1000.0], types.SimpleNamespace(slowdown=slowdown)
    dataset = types.SimpleNamespace(train=range(3_000))

    def decode_and_extract(plan):
        clock[0] += took
        return dataset

    patch.setattr(measure, "_decode_and_extract", decode_and_extract)
    patch.setattr(measure, "ContentionMeter", lambda: contextlib.nullcontext(busy))
    return dataset, lambda: clock[0]


@pytest.mark.parametrize(
    ("took", "slowdown", "is_more"), [(20, 1.0, True), (300, 1.0, False), (91, 3.0, False)]
)
def test_steps_are_chosen_again_when_features_are_done(monkeypatch, took, slowdown, is_more):
    """They take longer or shorter than expected, and meanwhile the machine may be busy."""
    dataset, now = take_time(monkeypatch, took, slowdown)
    before, (plan, images) = choose(
        monkeypatch, 1.0, 10.0, per_image=0.01, changes=measure.start_in_time, now=now
    )
    config = plan.config
    validate_config(config)
    assert images is dataset
    assert config.data.image_size == before.data.image_size
    assert (config.num_steps > before.num_steps) == is_more
    step = 1.0 * (config.data.image_size / 128) ** 2 * slowdown
    assert 600 - 150 - 20 * step < took + config.num_steps * step < 600
    assert f"Decoding and features took {took} s: {config.num_steps:,} steps of" in plan.reason
    assert ("steps take about 3 times as long" in plan.reason) == (slowdown > 1)
    assert config.eval_every == min(math.ceil(config.num_steps / 3), 500)


@pytest.mark.parametrize(
    ("seconds", "settings", "times"),
    [
        (0.1, {}, 1),
        (0.001, {}, 2),  # Tuned, because it runs often.
        (4.0, {}, 1),  # At 160 pixels, as was guessed.
        (4.0, {"data.image_size": 160}, 1),
        (6.0, {"data.image_size": 160}, 2),  # With fewer images per step.
    ],
)
def test_what_was_compiled_to_measure_is_not_charged_again(monkeypatch, seconds, settings, times):
    rest = [
        int(re.search(r"(\d+) s for everything else", sentence)[1])
        for compile_seconds in (10.0, 40.0)
        for _, sentence in [
            choose(monkeypatch, seconds, 10.0, compile_seconds=compile_seconds, **settings)
        ]
    ]
    assert rest[1] - rest[0] == 30 * times


def test_another_program_is_needed_for_other_shapes_options_and_constants(monkeypatch):
    get_budget = lambda plan: plan.budget  # noqa: E731
    _, budget = choose(monkeypatch, 0.1, 10.0, changes=get_budget)
    assert budget.is_compiled(224, 8, 40)
    assert dataclasses.replace(budget, num_decoded=3_000).is_compiled(224, 8, 40)
    assert not dataclasses.replace(budget, num_decoded=2_999).is_compiled(224, 8, 40)
    for size in ((160, 8, 40), (224, 4, 40), (224, 8, 6_000)):
        assert not budget.is_compiled(*size)
    # Networks from random weights are normalized by all images.
    for settings, is_known in (({}, False), ({"data.mean": (0.5,), "data.std": (0.2,)}, True)):
        _, budget = choose(monkeypatch, 0.1, 10.0, CPU, changes=get_budget, **settings)
        assert budget.is_compiled(32, 16, 300) is is_known


@pytest.mark.parametrize("pipeline", one_of("device", "tfdata"))
def test_what_was_compiled_to_measure_is_what_runs(tmp_path, monkeypatch, pipeline):
    """The number of steps follows from the measured time, and decays from this number."""
    counts = {"labeled/a": 6, "labeled/b": 6, "unlabeled": 18}
    folder = write_images(tmp_path / "photos", counts)
    programs = record_programs(monkeypatch)
    settings = {
        "data.pipeline": pipeline,
        "data.mean": (0.5,),
        "data.std": (0.2,),
        "mesh.network": 1,
        "mesh.data": 1,
        "data.image_size": 8,
        "data.randaugment_ops": 0,
        "data.validation": 0.2,
        "num_labels": 8,
        "batch_size": 8,
        "mu": 2,
    }
    request = Request(
        folder, workdir=tmp_path / "run", method="freematch", minutes=0.01, settings=settings
    )
    with use_tiny_model():
        planned = plan.plan_run(request)
        train_with_stages(planned.config, planned.workdir)
    steps = [program for program in programs if program.name == "jit_train_step"]
    assert [program.runs for program in steps] == [5, planned.config.num_steps]
    assert len({(program.code, str(program.options)) for program in steps}) == 1


def test_more_images_than_the_time_can_describe_stay_out_of_the_graph(monkeypatch):
    few, sentence = choose(monkeypatch, 1.0, 10.0, per_image=0.01)
    assert (few.model.inferred_images, "in the graph" in sentence) == (0, False)
    folder = {"num_unlabeled": 60_000}
    many, sentence = choose(monkeypatch, 1.0, 10.0, per_image=0.003, folder=folder)
    assert 0 < many.model.inferred_images < 60_000
    assert f"{many.model.inferred_images:,} unlabeled images in the graph" in sentence
    # Also if their labels are there, but not used.
    counts = {"cat": 30_000, "dog": 30_000}
    folder = {"class_counts": counts, "num_labeled": 60_000, "num_unlabeled": 0}
    hidden, *_ = choose(monkeypatch, 1.0, 10.0, per_image=0.003, folder=folder, num_labels=40)
    assert hidden.model.inferred_images == many.model.inferred_images
    # After the last step, networks see up to 10,000 labeled and 1,000 others for the report.
    counts = {"cat": 5_000, "dog": 5_000}
    all_labeled = {"class_counts": counts, "num_labeled": 10_000, "num_unlabeled": 0}
    rest = [
        int(
            re.search(r"(\d+) s for everything else", choose(monkeypatch, 1.0, 20.0, **folder)[1])[
                1
            ]
        )
        for folder in (
            {"folder": {"num_unlabeled": 9_960}, "model.final_head": "inferred"},
            {"folder": all_labeled, "model.final_head": "inferred"},
        )
    ]
    assert rest[1] > rest[0] + 10
    layout = create_summary().layout._replace(test=range(20_000))
    slow, _ = choose(monkeypatch, 1.0, 10.0, per_image=0.01, folder={"layout": layout})
    assert slow.eval_every == slow.num_steps  # An evaluation takes minutes.


SUPERVISED, RATE = {"method": "supervised"}, "optimizer.learning_rate"
SET, LARGE = ({"data.image_size": size, "batch_size": n} for size, n in ((160, 16), (224, 8)))
FEW = "More steps would not help with so few labels"


@pytest.mark.parametrize(
    ("seconds", "minutes", "known", "chosen", "said"),
    [
        # What the user sets wins, and small photos are enlarged to 160 pixels.
        (1.0, 10.0, {"num_steps": 17}, {"num_steps": 17, "data.image_size": 128}, None),
        (9.0, 10.0, SET, SET, ""),
        (1e-3, 10.0, {"side": 100}, {"data.image_size": 160}, "at 160 pixels"),
        # Other networks have no default and keep their resolution.
        (0.5, None, {"resources": CPU}, {"num_steps": 3000}, None),
        (16.0, 10.0, {"resources": CPU}, {"num_steps": 560, "data.image_size": 32}, "560 steps"),
        # Training on few labels only is short and slow.
        *(
            (0.1, 10.0, SUPERVISED | {"num_labels": n}, {"num_steps": m, RATE: rate}, FEW)
            for n, m, rate in ((10, 40, 3e-6), (18, 40, 3e-6), (200, 200, 1e-4))
        ),
        (0.1, 10.0, SUPERVISED | {"num_labels": 10, "num_steps": 300}, {"num_steps": 300}, None),
        # A batch that is halved keeps its parts.
        (60.0, 10.0, {"accumulate_steps": 3}, {"batch_size": 6, "accumulate_steps": 3}, ""),
        # Where a step costs nothing, as on an accelerator, whose compiler may take longer than the
        # whole time, neither size nor batch is reduced. Where it costs much, both are.
        (1e-3, 2.0, {"compile_seconds": 30.0}, LARGE, "2 minutes: "),
        (1e-3, 2.0, {"compile_seconds": 200.0}, LARGE, "more than requested"),
        (3.0, 2.0, {"compile_seconds": 30.0}, {"data.image_size": 96, "batch_size": 4}, ""),
        (3.0, 2.0, {"compile_seconds": 200.0}, {"data.image_size": 96, "batch_size": 4}, ""),
    ],
)
def test_time_decides_what_is_left_open(monkeypatch, seconds, minutes, known, chosen, said):
    config, sentence = choose(monkeypatch, seconds, minutes, **known)
    values = flatten(config.to_dict())
    assert {key: values[key] for key in chosen} == chosen
    assert sentence is None if said is None else said in sentence


def test_few_labels_end_a_training_early_and_only_from_pretrained_weights(monkeypatch):
    known = SUPERVISED | {"num_labels": 200}
    _, sentence = choose(monkeypatch, 0.1, 10.0, **known)
    assert float(sentence.split()[0]) < 3
    config, sentence = choose(monkeypatch, 0.1, 10.0, CPU, **known)
    assert config.num_steps > 300
    assert FEW not in sentence


def test_what_takes_no_time_is_never_too_short_and_not_planned_again(monkeypatch):
    assert choose(monkeypatch, 1e-3, 2.0)[0].num_steps >= 1_000
    assert not choose(monkeypatch, 1e-3, 0.2, changes=measure.is_too_short)[1]
    _, (plan, images) = choose(monkeypatch, 1.0, 10.0, num_steps=17, changes=measure.start_in_time)
    assert (plan.config.num_steps, images) == (17, None)


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"optimizer.learning_rate": 0.03}, r"too large for optimizer\.name=adamw"),
        ({"batch_size": 6, "accumulate_steps": 4}, "choose one of its divisors"),
    ],
)
def test_a_contradiction_is_found_before_a_step_is_measured(monkeypatch, settings, remedy):
    with pytest.raises(UserError, match=remedy):
        choose(monkeypatch, float("nan"), 10.0, **settings)


@pytest.mark.parametrize("seconds", [7.0, 60.0])
def test_what_is_said_to_be_needed_is_enough_and_is_the_default(monkeypatch, seconds):
    short, sentence = choose(monkeypatch, seconds, 2.0, changes=lambda plan: plan)[1], "too short"
    assert f"2 minutes are {sentence} for a training" in short.reason
    needed = short.needed_minutes
    assert f"about {needed} minutes are needed." in short.reason
    for minutes, is_enough in ((needed, True), (0.8 * needed, False)):
        found = choose(monkeypatch, seconds, minutes, changes=lambda plan: plan)[1]
        assert (found.needed_minutes is None) == is_enough
    config, sentence = choose(monkeypatch, seconds)
    assert config.num_steps >= 40
    assert ("A shorter training would not be worth having" in sentence) == (seconds == 60)


def test_a_time_that_turns_out_too_short_becomes_longer_once_features_are_done(monkeypatch):
    """The features are there, and a training of 20 steps would be worse than none."""
    _, now = take_time(monkeypatch, 500, 9.0)
    _, (plan, _) = choose(
        monkeypatch, 2.0, 10.0, per_image=0.01, changes=measure.start_in_time, now=now
    )
    assert plan.config.num_steps >= 40
    found = re.search(r"the fewest worth training, for (\d+) minutes in all", plan.reason)
    assert int(found[1]) > 10


@pytest.mark.parametrize("setting", [{}, {"batch_size": 8}])
def test_too_short_a_time_is_refused_with_the_minutes_that_are_needed(
    tmp_path, monkeypatch, capsys, setting
):
    """And a dry run says the same. Nothing is written."""
    monkeypatch.chdir(tmp_path)
    counts = {"labeled/a": 2, "labeled/b": 2, "unlabeled": 4}
    write_images(tmp_path / "photos", counts, (100, 100, 3))
    make_up_times(monkeypatch, 5.0, 60.0)
    monkeypatch.setattr(measure, "time", types.SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(measure, "time_prediction", lambda config: 1.0)
    monkeypatch.setattr(plan, "find_resources", lambda: PRETRAINED)
    chosen = plan.plan_run(Request(tmp_path / "photos", minutes=2.0, settings=setting))
    needed = f"about {chosen.needed_minutes} minutes are needed"
    with pytest.raises(UserError, match=f"2 minutes are too short .*{needed}.*--instant"):
        plan.start_run(chosen)
    overrides = [f"--config.{key}={value}" for key, value in setting.items()]
    commands.train("photos", overrides, None, dry_run=True, minutes=2.0)
    printed = capsys.readouterr().out
    assert needed in printed
    assert not re.search("Method|Steps|Memory|Run:", printed)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
