"""The setup and the exit of a process, shared by all programs of the project."""

import errno
import importlib.metadata
import io
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import flags, logging

from cls_jax.errors import StoppedError, UserError
from cls_jax.io import PARSE_ERRORS, find_cache_folder, make_printable

_CONVOLUTIONS_WITH_EIGEN = (
    "--xla_cpu_experimental_ynn_fusion_type=-LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
)
# What sets the number of threads of a library for linear algebra.
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
# One of these exists if an NVIDIA driver is loaded: on Linux, in a container, in WSL 2.
_NVIDIA_DEVICES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg")
# Substrings of errors from the libraries for communication between processes.
_LOST_PROCESS_WORDS = ("Gloo", "NCCL", "heartbeat", "UNAVAILABLE", "CoordinationService")
# Raised by values of flags, and by configuration files that cannot be loaded.
USAGE_ERRORS: tuple[type[Exception], ...] = (flags.Error, *PARSE_ERRORS)
_DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT)
_PATH_REFUSES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses absl flags as `app.run` does, but reports errors in one line, with exit code 2."""
    try:
        rest = flags.FLAGS(argv)
        # A configuration file that cannot be loaded shows only when the flag is first used.
        if "config" in flags.FLAGS and flags.FLAGS.config is not None:
            flags.FLAGS.config.is_locked  # noqa: B018
    except SystemExit as end:
        sys.exit(0 if end.code == 1 else end.code)  # absl ends --help with 1, as if it had failed.
    except UserError as error:
        exit_with_error(error)
    except USAGE_ERRORS as error:
        exit_with_error(explain_usage_error(error))
    if rest[1:]:
        exit_with_error(f"Unexpected argument {rest[1]!r}: options begin with --.")
    return rest


def prepare_process() -> None:
    """Sets up JAX and logging. To be called before JAX computes anything."""
    # A console may lack characters in the names of files and classes.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    # TensorFlow only feeds images here, so its start-up messages would not help our users.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    # Users can do nothing about the libraries' warnings. Failures arrive as exceptions.
    logging.set_verbosity(logging.FATAL)
    sys.unraisablehook = _ignore_closed_loops
    use_all_cores_for_convolutions()
    share_cores()
    enable_compilation_cache()


def _ignore_closed_loops(unraisable: "sys.UnraisableHookArgs") -> None:
    """Hides the follow-up errors of Orbax's pending reads and writes after one of them failed."""
    if "Event loop is closed" not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def use_all_cores_for_convolutions() -> None:
    """Has XLA compute convolutions on a CPU with Eigen, on all cores. Does nothing for a GPU.

    jaxlib hands them to YNNPACK, which in version 0.10 uses one core: forward and backward of
    WRN-28-2 on 60 images and 2 cores take 507 ms with it and 349 ms with Eigen. With 0.11, CLS's
    step takes 680 and 582 ms. The leading minus removes only convolutions from YNNPACK's list:
    reductions are faster there. In 0.12, YNNPACK uses all cores. Other versions may not know the
    flag, on which XLA aborts.
    """
    xla_flags = os.environ.get("XLA_FLAGS", "")
    is_known = importlib.metadata.version("jaxlib").startswith(("0.10.", "0.11."))
    is_set = "xla_cpu_experimental_ynn_fusion_type" in xla_flags
    if is_known and not is_set and not will_use_gpu():
        os.environ["XLA_FLAGS"] = f"{xla_flags} {_CONVOLUTIONS_WITH_EIGEN}".strip()


def share_cores() -> None:
    """Keeps threads from waiting for each other, where several commands share a machine.

    BLAS gets one thread, unless the environment has a number: nearly all of its work here is many
    small products, for which its threads mostly wait. Features of 20,000 images, 2,848 numbers
    each, times themselves take two threads as long as one (2 cores). XLA gets as many threads as a
    container's quota has cores, of which it knows nothing.
    """
    import joblib
    from threadpoolctl import threadpool_limits

    if not any(name in os.environ for name in _BLAS_THREADS):
        os.environ.update(dict.fromkeys(_BLAS_THREADS, "1"))  # For a library that is loaded later.
        threadpool_limits(1, "blas")
    if (count := joblib.cpu_count()) < (os.cpu_count() or 1):
        os.environ.setdefault("NPROC", str(count))


def will_use_gpu() -> bool:
    """Whether JAX will use an accelerator, determined without importing JAX.

    JAX uses the first platform in $JAX_PLATFORMS. If that is not set, it uses NVIDIA GPUs if its
    CUDA plugin is installed and a driver is loaded.
    """
    if platforms := os.environ.get("JAX_PLATFORMS"):
        return platforms.split(",")[0].strip() != "cpu"
    plugins = importlib.metadata.entry_points(group="jax_plugins")
    has_plugin = any("cuda" in plugin.name for plugin in plugins)
    return has_plugin and any(map(os.path.exists, _NVIDIA_DEVICES))


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk, so that the next run starts faster.

    The folder is $JAX_COMPILATION_CACHE_DIR, or else cls_jax/ in the user's cache folder.
    """
    import jax

    # JAX compiles what it cannot read, and would warn of each program.
    for verb in ("reading", "writing"):
        warnings.filterwarnings("ignore", f"Error {verb} persistent compilation cache entry")
    cache = find_cache_folder()
    if cache.is_absolute() and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache))


def explain_usage_error(error: Exception) -> str:
    """Reduces an error of absl or ml_collections to its last line, which names flag or file."""
    from cls_jax.config import find_key  # Imports JAX.

    text = str(error).replace("\\n", "\n").replace("\\'", "'")
    if text[:1] in ("'", '"'):  # The repr of a message.
        text = text.strip("'\"")
    line = (text.splitlines() or [type(error).__name__])[-1].strip()[:400].rstrip(".")
    name = line
    if line.isidentifier():
        line = f"The configuration of this dataset has no key {line}"
    elif unknown := re.fullmatch(r"Unknown command line flag '([\w-]+)'", line):
        name = unknown[1]
    typed = [word.partition("=")[0] for word in sys.argv]  # Perhaps for another dataset.
    if (key := find_key(name)) and f"--config.{key}" not in typed:
        line += f": did you mean --config.{key}?"
    end = " See" if line.endswith("?") else ": see"
    return f"{line}{end} --help and cls-jax help configuration."


def run_to_end(*functions: Callable[[], None]) -> None:
    """Runs a program, in parts. Errors that the user can fix end it in a sentence, exit code 2.

    After a request to stop, the exit code is 128 + the signal's number, as in a shell.
    """
    try:
        for function in functions:
            function()
        sys.stdout.flush()
    except UserError as error:
        exit_with_error(error)
    except BrokenPipeError:  # The reader, such as `head`, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # For the final flush.
        sys.exit(128 + 13)  # Of SIGPIPE, which Windows does not have.
    except OSError as error:
        if error.errno in _DISK_REFUSES:
            exit_with_error(
                f"{error.filename or 'The disk'} cannot be written ({error.strerror}): free disk "
                "space and rerun the command."
            )
        if error.errno not in _PATH_REFUSES or not error.filename:
            raise
        exit_with_error(
            f"{error.filename!s} cannot be used ({error.strerror}): allow access to it or pass "
            "another path."
        )
    except StoppedError as stopped:
        _exit(str(stopped), 128 + stopped.signal)
    except KeyboardInterrupt:
        _exit("Stopped.", 128 + signal.SIGINT)
    except Exception as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            exit_with_error(
                "The device's memory is full: choose a smaller --config.batch_size, --config.mu or "
                "--config.eval_batch_size."
            )
        if not _is_distributed():
            raise
        if any(word in str(error) for word in _LOST_PROCESS_WORDS):
            exit_with_error(
                f"Another process of this run was lost ({str(error).splitlines()[0]}): restart all "
                "processes with the same command to resume from the newest checkpoint."
            )
        traceback.print_exc()
        exit_with_error("This process failed (see above), and the others will end too.")


def exit_with_error(error: Exception | str) -> NoReturn:
    """Prints the error to standard error and exits with code 2."""
    _exit(f"Error: {error}", 2)


def _exit(sentence: str, code: int) -> NoReturn:
    print(make_printable(sentence), file=sys.stderr, flush=True)
    sys.stdout.flush()
    if _is_distributed():
        os._exit(code)  # An orderly exit would wait for processes that may never answer.
    sys.exit(code)


def _is_distributed() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()
