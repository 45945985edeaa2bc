"""The training loop.

The order within a step, and the reasons:

1. Evaluate if due: a checkpoint of this step is saved only after its accuracy has been written, so
   a resumed run never misses an evaluation.
2. Save if due, or if the process is asked to stop, while the state still exists: the next step
   donates its buffers.
3. Dispatch the step, without waiting for it.
4. Write the metrics of an earlier step: the host runs ahead of the device and never waits for the
   step that it has just dispatched.

After the last step, heads may be refitted (`model.final_head`) before evaluation and saving.
"""

import contextlib
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
from ml_collections import ConfigDict

from cls_jax.config import parse_step_range, to_json
from cls_jax.data.datasets import load_dataset
from cls_jax.data.pipelines import create_pipeline
from cls_jax.errors import StoppedError, explain_writing
from cls_jax.parallel.distributed import barrier, check_same, is_main_process
from cls_jax.parallel.preemption import PreemptionHandler, leave_when_asked
from cls_jax.photos.features.instant import read_instant
from cls_jax.photos.start.final_heads import fit_final_heads
from cls_jax.photos.start.start import Start, compute_start, init_state_with_heads
from cls_jax.runs.checkpoint import Checkpointer
from cls_jax.runs.folder import (
    INSTANT_FILE,
    check_run_folder,
    describe_finished,
    read_result,
    write_pseudo_labels,
    write_result,
)
from cls_jax.runs.metrics import MetricsWriter
from cls_jax.runs.result import create_result
from cls_jax.training.evaluate import create_evaluate
from cls_jax.training.prepare import Prepared, hold_folder, prepare_run, resolve_model
from cls_jax.training.progress import (
    MetricsQueue,
    PausableTimer,
    ProgressBar,
    announce,
    report_non_finite,
    select_images,
)
from cls_jax.training.rounds import create_enter_round, is_round_boundary
from cls_jax.training.setup import TrainSetup, TrainState, restore_newest, set_step
from cls_jax.training.step import compile_step, compute_distances, create_train_step, make_batch_fn

PROFILE = "profile"  # The folder of traces.


def run_training(
    config: ConfigDict,
    workdir: pathlib.Path,
    load: Callable[[ConfigDict], Any] = load_dataset,
    keep: Callable[[TrainSetup, TrainState, int], Any] = lambda *end: None,
) -> dict[str, Any]:
    """Trains or resumes the run in `workdir`, which need not exist. Returns its result.

    `load` loads the dataset. `keep` is called with the setup, the last state and its step. Neither
    is called for a finished run. A run without steps has no state, only its instant classifier.
    Raises a UserError if the folder, the data or the devices do not fit the configuration, another
    process trains there, a loss is not finite, or the last state cannot be written, and a
    StoppedError once a run is saved that the user or the system asked to stop.
    """
    config = resolve_model(config)
    check_run_folder(workdir, config)
    check_same(to_json(config), workdir)  # All processes must train the same run.
    if (result := read_result(workdir)) is not None:
        if is_main_process():
            print(describe_finished(workdir, result["step"], config.num_steps))
        if result["step"] >= config.num_steps:
            return result
    with leave_when_asked() as has_begun, contextlib.ExitStack() as stack:
        prepared = setup, _, spec, _ = prepare_run(config, workdir, load)
        stack.enter_context(hold_folder(config, prepared))
        seconds = 0.0
        if config.num_steps:
            session = _Session(prepared, has_begun)
            seconds = session.take_steps()
            keep(setup, session.state, config.num_steps)
        else:
            if is_main_process():
                announce(prepared, 0)
            _, accuracies = compute_and_store_start(prepared)
            if is_main_process():
                with contextlib.closing(MetricsWriter(workdir, has_curves=False)) as writer:
                    writer.write(0, accuracies)
        if is_main_process():
            num_labeled = len(spec.labeled_indices)
            write_result(workdir, create_result(config, workdir, num_labeled, seconds))
    barrier("result")
    result = read_result(workdir)
    assert result is not None, workdir
    return result


def compute_and_store_start(prepared: Prepared) -> tuple[Start | None, dict[str, float]]:
    """Computes the start of a run, writes its files, and returns it with what it measured."""
    setup, dataset, spec, workdir = prepared
    start = compute_start(setup, dataset, spec)
    if start is None:
        return None, {}
    is_new, inferred = ~start.is_labeled, start.inferred
    columns = (start.rows[is_new], inferred.labels[is_new], inferred.weights[is_new])
    write_pseudo_labels(workdir, dataset, *columns)
    if start.classifier.network is not None and is_main_process():
        with explain_writing(workdir, "free disk space and rerun the command"):
            start.classifier.write(workdir / INSTANT_FILE)
    return start, start.accuracies


class _Session:
    """Trains a run from its newest checkpoint to its last step, or until it is asked to stop.

    Every step may donate the buffers of `state`, so code that reads it must copy what it needs.
    """

    def __init__(self, prepared: Prepared, has_begun: Callable[[], None]):
        self._has_begun = has_begun  # Called after the first step.
        self._setup, self._dataset, self._spec, self._workdir = prepared
        self._config = config = self._setup.config
        self._record = functools.partial(write_pseudo_labels, self._workdir, self._dataset)
        self._checkpointer = Checkpointer(self._workdir, config.keep_checkpoints)
        self._fits_final_heads = config.model.final_head == "graph"
        # Onto shapes, so that the restored state is the only one in memory.
        restored = restore_newest(self._checkpointer, self._setup)
        baselines: dict[str, float] = {}
        self._start: Start | None = None
        if restored is None:
            self._start, baselines = compute_and_store_start(prepared)
            self.state = init_state_with_heads(self._setup, self._dataset, self._spec, self._start)
            if not self._setup.method.select_labels and not self._fits_final_heads:
                self._start = None  # Its tables take memory and are no longer needed.
            self._first_step, self._timer = 0, PausableTimer()
        else:
            self._first_step, self.state, metadata = restored
            self._timer = PausableTimer(metadata["train_seconds"])
        if is_main_process():
            announce(prepared, self._first_step)
        self._inputs: Any = None
        if self._first_step < config.num_steps:  # Importing TensorFlow takes seconds.
            self._inputs, input_specs, create_batch = create_pipeline(
                self._spec, self._dataset, self._setup.mesh, self._first_step, config.num_steps
            )
            self._train_step: Any = create_train_step(self._setup, create_batch, input_specs)
            self._make_batch = make_batch_fn(self._setup, create_batch, input_specs)
        self._evaluate = create_evaluate(self._setup)
        if self._setup.method.select_labels:
            self._enter_round = create_enter_round(
                self._setup, self._dataset, self._spec, self._record, self._get_start
            )
        self._bar = ProgressBar(self._first_step, config.num_steps)
        self._checkpointer.warn = self._bar.say
        # Baselines are measured once, at step 0. A run that resumes there keeps these rows.
        first_row = self._first_step if restored is None else max(self._first_step, 1)
        self._writer = MetricsWriter(
            self._workdir, first_row, self._bar.say, is_silent=not is_main_process()
        )
        if baselines:
            self._writer.write(0, baselines)
        # The steps that process 0 traces, and what ends the trace.
        self._traced = (is_main_process() and parse_step_range(config.profile)) or range(0)
        self._trace = contextlib.ExitStack()
        self._metrics = MetricsQueue(
            *(config.log_every, self._dataset.num_classes, self._spec.images_per_step),
            *(self._writer, self._timer, self._bar),
        )

    def take_steps(self) -> float:
        """Takes all steps and closes everything. Returns the seconds of all sessions."""
        config, checkpointer = self._config, self._checkpointer
        with contextlib.ExitStack() as stack:
            for part in (self._inputs, self._writer, self._bar, checkpointer, self._trace):
                if part is not None:
                    stack.enter_context(contextlib.closing(part))
            stop = stack.enter_context(PreemptionHandler())
            # An implicit transfer would be a hidden synchronization with the device. Explicit ones
            # (`jax.device_get`, `jax.device_put`) pass. With debug_nans, JAX runs the step
            # operation by operation and moves constants, so all are allowed.
            stack.enter_context(jax.transfer_guard("allow" if config.debug_nans else "disallow"))
            stack.enter_context(jax.debug_nans(config.debug_nans))
            stack.enter_context(
                report_non_finite(self._workdir, checkpointer, self._recreate_batch)
            )
            for step in range(self._first_step, config.num_steps + 1):
                is_last = step == config.num_steps
                is_new = step > self._first_step  # Otherwise it is already done and saved.
                if is_last and is_new and self._fits_final_heads:
                    self._fit_final_heads()
                if is_last or _is_due(step, config.eval_every):
                    self._measure_accuracies(step, stop.interrupts_eval)
                is_stopping = stop.should_stop(step)
                is_save_due = is_last or is_stopping or _is_due(step, config.checkpoint_every)
                # Fitting the final heads may take minutes. If killed meanwhile, only one step is
                # repeated.
                is_save_due |= self._fits_final_heads and step == config.num_steps - 1
                if is_save_due and is_new:
                    self._save(step)
                if is_stopping:
                    saved = checkpointer.finish()
                    sentence = (
                        f"Stopped before step {step}, and {saved}: rerun the command to continue."
                    )
                    raise StoppedError(sentence, stop.signal)
                if not is_last:
                    self._take_step(step)
            checkpointer.finish(config.num_steps)
        return self._timer.seconds

    def _measure_accuracies(self, step: int, should_stop: Callable[[], bool]) -> None:
        self._metrics.drain()
        accuracies: dict[str, float] = {}
        with self._timer.paused():
            for split, images, labels in self._dataset.held_out:
                accuracies |= self._evaluate(self.state, images, labels, should_stop, split)
        if accuracies:
            self._writer.write(step, accuracies)
            self._bar.show_accuracies(step, accuracies)

    def _save(self, step: int) -> None:
        self._metrics.drain()
        # Rows not yet on disk would be lost: a resumed run repeats only later ones.
        if self._writer.flush():
            self._checkpointer.save(step, self.state, {"train_seconds": self._timer.seconds})

    def _take_step(self, step: int) -> None:
        config = self._config
        if is_round_boundary(config, step):
            # Nothing is in flight between rounds, so copies to the host delay nothing.
            with self._timer.paused(), jax.transfer_guard("allow"):
                self.state = self._enter_round(self.state, step)
        with self._metrics.waiting():
            step_input = next(self._inputs)
        if step == self._first_step and not config.debug_nans:
            self._train_step, seconds, memory = compile_step(
                self._train_step, self.state, step_input, self._setup.mesh.local_devices[0]
            )
            self._bar.say(f"{memory}; compiled in {seconds:.1f} s")
        if step == 0:
            images = select_images(self._make_batch(self.state, step_input), self._spec)
            self._writer.write_images(step, images)
        if step in self._traced and step in (self._first_step, self._traced[0]):
            self._trace.enter_context(jax.profiler.trace(self._workdir / PROFILE))
        self.state, step_metrics = self._train_step(self.state, step_input)
        if self._traced and step == self._traced[-1]:
            jax.block_until_ready(self.state)  # The last step is part of the trace.
            self._trace.close()
        if step % config.log_every == 0:
            step_metrics |= compute_distances(self.state)
        self._metrics.append(step, step_input, step_metrics)
        if step == self._first_step:
            jax.block_until_ready(self.state)  # Compiled and run once: the timer starts here.
            self._timer.start()
            self._has_begun()

    def _fit_final_heads(self) -> None:
        self._bar.say("refitting the heads to labels from frozen features and the trained networks")
        self._metrics.drain()
        with self._timer.paused(), jax.transfer_guard("allow"):
            start = self._get_start()
            assert start is not None, "a run with final heads has a start"
            self.state = fit_final_heads(
                self._setup, self.state, self._dataset, start, self._record
            )

    def _get_start(self) -> Start | None:
        """The run's start, which a resumed run computes again with the network in its folder."""
        path = self._workdir / INSTANT_FILE
        if self._start is None:
            network = read_instant(path).network if path.exists() else None
            self._start = compute_start(self._setup, self._dataset, self._spec, network)
        return self._start

    def _recreate_batch(self, step: int, step_input: Any) -> Any:
        # A batch is a function of seed and step, so the newest state also makes an older one.
        state = set_step(self._setup.mesh, self.state, step)
        return jax.device_get(self._make_batch(state, step_input))


def _is_due(step: int, every: int) -> bool:
    return step > 0 and step % every == 0
