"""The training loop.

The order within a step, and the reasons:

1. Evaluate if due: a checkpoint of this step is saved only after its accuracy has been written, so
   a resumed run never misses an evaluation.
2. Save if due, or if the process is asked to stop, while the state still exists: the next step
   donates its buffers.
3. Dispatch the step, without waiting for it.
4. Write the metrics of an earlier step: the host runs ahead of the device and never waits for the
   step that it has just dispatched.

After the last step, `Stages` may change the state before it is evaluated and saved.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from cls_jax.batch import PyTree, RawBatch
from cls_jax.config import parse_step_range, to_json, with_values
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline
from cls_jax.data.types import Dataset
from cls_jax.errors import StoppedError, UserError
from cls_jax.parallel.distributed import (
    all_processes,
    barrier,
    check_same,
    decide,
    is_main_process,
    together,
)
from cls_jax.parallel.preemption import PreemptionHandler, leave_when_asked
from cls_jax.runs.best import BestCheckpoint
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.folder import (
    check_run_folder,
    create_run_folder,
    describe_finished,
    read_result,
    write_config,
    write_pseudo_labels,
    write_result,
)
from cls_jax.runs.metrics import MetricsWriter
from cls_jax.runs.result import create_result
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.prepare import (
    WEIGHT_READERS,
    Prepared,
    RunEnd,
    WeightReader,
    check_frozen,
    check_packages,
    hold_folder,
    prepare_run,
    resolve_model,
)
from cls_jax.training.progress import (
    MetricsQueue,
    PausableTimer,
    ProgressBar,
    announce,
    report_non_finite,
    select_images,
)
from cls_jax.training.rounds import create_enter_round, is_round_boundary
from cls_jax.training.setup import TrainState, set_step
from cls_jax.training.stages import Stages
from cls_jax.training.step import (
    TakeStep,
    compile_step,
    compute_distances,
    create_train_step,
    make_batch_fn,
)

PROFILE = "profile"  # The folder of traces.


def run_training(
    config: ConfigDict,
    workdir: pathlib.Path,
    load: Callable[[ConfigDict], Dataset] = load_dataset,
    stages: Stages | None = None,
    weight_readers: Sequence[WeightReader] = WEIGHT_READERS,
) -> tuple[dict[str, Any], RunEnd | None]:
    """Trains or resumes the run in `workdir`, which need not exist.

    `load` loads the dataset, `weight_readers` read the weights of `model.init`, and `stages` begin
    and end the run, by default without further ado. None of them is called for a finished run.
    Returns the contents of `result.json` and the end of the run, which is None if it was finished
    before. Raises a UserError if the folder, the data or the devices do not fit the configuration,
    another process trains there, a loss is not finite, or the last state cannot be written, and a
    StoppedError once a run is saved that the user or the system asked to stop.
    """
    config = resolve_model(config)
    stages = stages or Stages()
    check_same(to_json(config), workdir)  # All processes must train the same run.
    finished = decide(lambda: check_run_folder(workdir, config))
    if finished is not None:
        if is_main_process():
            print(describe_finished(workdir, finished, config.num_steps))
        if finished >= config.num_steps:
            return _read_result(workdir), None
    # Until the first step, a run that is given more steps stays the finished one that it is.
    before = config if finished is None else with_values(config, {"num_steps": finished})

    def check() -> None:
        if check_run_folder(workdir, config) != finished:
            raise UserError(f"Another session has just ended in {workdir}: rerun the command.")

    together(lambda: check_packages(config))
    check_frozen(config)
    with leave_when_asked() as has_begun:
        prepared = prepare_run(config, workdir, load, weight_readers)
        labeled = prepared.spec.labeled_indices
        with hold_folder(
            workdir,
            check=check,
            create=lambda: create_run_folder(workdir, before, labeled, prepared.dataset),
            others=stages.files,
        ) as is_a_run:

            def begin() -> None:
                has_begun()
                is_a_run()
                if before is not config and is_main_process():
                    write_config(workdir, config)

            state, last_step, seconds = take_steps(prepared, stages, begin, finished)
            config = with_values(config, {"num_steps": last_step})
            if is_main_process():
                if last_step < prepared.setup.config.num_steps:  # Somebody has ended it early.
                    write_config(workdir, config)
                result = create_result(
                    config,
                    workdir,
                    num_labels=len(labeled),
                    train_seconds=seconds,
                    name_baselines=stages.name_baselines,
                )
                write_result(workdir, result)
    barrier("result")
    return _read_result(workdir), RunEnd(prepared.setup, state, config.num_steps)


def _read_result(workdir: pathlib.Path) -> dict[str, Any]:
    result = read_result(workdir)
    assert result is not None, workdir
    return result


def take_steps(
    prepared: Prepared, stages: Stages, has_begun: Callable[[], None], finished: int | None = None
) -> tuple[TrainState, int, float]:
    """Trains a run from its newest checkpoint to its last step, or until it is asked to stop.

    A run that is `finished` at a step continues from there and from no other state. `has_begun` is
    called after the first step. Every step may donate the buffers of the state, so code that reads
    it must copy what it needs. Returns the last state, its step, which is an earlier one if the
    process is asked to finish, and the seconds that the steps of all sessions took. Raises the same
    as `run_training`.
    """
    setup, dataset, spec, workdir = prepared
    config = setup.config
    num_steps = config.num_steps
    checkpointer = Checkpointer(workdir, config.keep_checkpoints)
    # Onto shapes, so that the restored state is the only one in memory.
    if finished is None:
        restored = checkpointer.restore_newest(setup.state_shapes)
    else:
        restored = checkpointer.restore(finished, setup.state_shapes)
    if restored is None:
        state = stages.before_first_step(setup, dataset, spec)
        first_step = 0
        timer = PausableTimer()
    else:
        first_step, state, metadata = restored
        timer = PausableTimer(metadata["train_seconds"])
    if is_main_process():
        announce(prepared, first_step)
    inputs = _generate_nothing()
    if first_step < num_steps:  # Importing TensorFlow takes seconds.
        inputs, input_specs, create_batch = create_pipeline(
            spec, dataset, setup.mesh, first_step, num_steps
        )
        train_step = create_train_step(setup, create_batch, input_specs)
        take_step: TakeStep = train_step
        schedule = setup.put_schedule()
        make_batch = make_batch_fn(setup, create_batch, input_specs)
    evaluate = create_evaluate(setup, [len(split) for split in dataset.held_out.values()])
    if setup.method.select_labels:
        enter_round = create_enter_round(
            setup,
            dataset,
            spec,
            begin=lambda index: stages.before_first_step(setup, dataset, spec, index),
            record=lambda *columns: write_pseudo_labels(workdir, dataset, *columns),
        )
    bar = ProgressBar(first_step, num_steps)
    checkpointer.warn = bar.say
    writer = MetricsWriter(workdir, first_step, bar.say, is_silent=not is_main_process())
    if stages.measured:
        writer.write(0, stages.measured)
    best = BestCheckpoint(workdir, first_step, bar.say)
    metrics = MetricsQueue(
        config=config,
        num_classes=dataset.num_classes,
        images_per_step=spec.images_per_step,
        writer=writer,
        timer=timer,
        bar=bar,
    )
    # The steps that process 0 traces, and what ends the trace.
    traced = (is_main_process() and parse_step_range(config.profile)) or range(0)
    trace = contextlib.ExitStack()
    changes_end = stages.changes_end(config)

    def measure_accuracies(step: int, should_stop: Callable[[], bool]) -> None:
        """Evaluates the held-out images, and writes, shows and keeps what it finds."""
        metrics.drain()
        accuracies: dict[str, float] = {}
        with timer.paused():
            for name, split in dataset.held_out.items():
                accuracies |= evaluate(
                    state, split.images, split.labels, should_stop=should_stop, split=name
                )
        if accuracies:
            writer.write(step, accuracies)
            bar.show_accuracies(step, accuracies)
            with timer.paused():
                best.offer(step, state, accuracies)

    def recreate_batch(step: int, step_input: PyTree) -> RawBatch:
        # A batch is a function of seed and step, so the newest state also makes an older one.
        made = make_batch(set_step(setup.mesh, state, step), step_input)
        batch: RawBatch = jax.device_get(made)
        return batch

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(inputs))
        stack.enter_context(contextlib.closing(writer))
        stack.enter_context(contextlib.closing(bar))
        stack.enter_context(contextlib.closing(checkpointer))
        stack.enter_context(contextlib.closing(best))
        stack.enter_context(contextlib.closing(trace))
        stop = stack.enter_context(PreemptionHandler())
        # An implicit transfer would be a hidden synchronization with the device. Explicit ones
        # (`jax.device_get`, `jax.device_put`) pass. With debug_nans, JAX runs the step operation by
        # operation and moves constants, so all are allowed.
        stack.enter_context(jax.transfer_guard("allow" if config.debug_nans else "disallow"))
        stack.enter_context(jax.debug_nans(config.debug_nans))
        stack.enter_context(report_non_finite(workdir, checkpointer, recreate_batch))
        for step in range(first_step, num_steps + 1):
            if stop.is_finishing and step > 0:
                num_steps = step
            is_last = step == num_steps
            is_new = step > first_step  # Otherwise it is saved already.
            if is_last and is_new and changes_end:
                metrics.drain()
                with timer.paused(), jax.transfer_guard("allow"):
                    state = stages.after_last_step(setup, dataset, spec, state, bar.say)
            if is_last or _is_due(step, config.eval_every):
                measure_accuracies(step, stop.interrupts_eval)
            is_stopping = stop.should_stop(step)
            is_save_due = is_last or is_stopping or _is_due(step, config.checkpoint_every)
            # If killed after the last step, while the state is changed, only one step is repeated.
            if (is_save_due or (changes_end and step == num_steps - 1)) and is_new:
                metrics.drain()
                # Rows not yet on disk would be lost: a resumed run repeats only later ones.
                if all_processes(writer.flush()):
                    checkpointer.save(step, state, {"train_seconds": timer.seconds})
            if is_stopping:
                where = "after the last step" if is_last else f"before step {step}"
                sentence = f"Stopped {where}, and {checkpointer.finish()}"
                raise StoppedError(f"{sentence}: rerun the command to continue.", stop.signal)
            if is_last:
                break
            if is_round_boundary(config, step):
                # Nothing is in flight between rounds, so copies to the host delay nothing.
                with timer.paused(), jax.transfer_guard("allow"):
                    state = enter_round(state, step)
            with metrics.waiting():
                step_input = next(inputs)
            if step == first_step and not config.debug_nans:
                device = setup.mesh.local_devices[0]
                take_step, seconds, memory = together(
                    functools.partial(compile_step, train_step, state, step_input, schedule, device)
                )
                bar.say(f"{memory}; compiled in {seconds:.1f} s")
            if step == 0:
                writer.write_images(step, select_images(make_batch(state, step_input), spec))
            if step in traced and step in (first_step, traced[0]):
                trace.enter_context(jax.profiler.trace(workdir / PROFILE))
            state, step_metrics = take_step(state, step_input, schedule)
            if traced and step == traced[-1]:
                jax.block_until_ready(state)  # The last step is part of the trace.
                trace.close()
            if step % config.log_every == 0:
                step_metrics |= compute_distances(state)
            metrics.append(step, step_input, step_metrics)
            if step == first_step:
                jax.block_until_ready(state)  # Compiled and run once: the timer starts here.
                timer.start()
                has_begun()
        checkpointer.finish(num_steps)
    return state, num_steps, timer.seconds


def _generate_nothing() -> Generator[PyTree, None, None]:
    """The input of a run that has no steps left."""
    yield from ()


def _is_due(step: int, every: int) -> bool:
    return step > 0 and step % every == 0
