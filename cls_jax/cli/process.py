"""What every program of the project does at its start and its end."""

import errno
import importlib.metadata
import os
import pathlib
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from absl import flags, logging

from cls_jax.errors import StoppedError, UserError
from cls_jax.io import PARSE_ERRORS, make_printable

_CONVOLUTIONS_WITH_EIGEN = (
    "--xla_cpu_experimental_ynn_fusion_type=-LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
)

# In errors of the libraries by which processes speak to each other.
_SIGNS_OF_A_LOST_PROCESS = ("Gloo", "NCCL", "heartbeat", "UNAVAILABLE", "CoordinationService")

# What values of flags lead to, and configuration files that cannot be loaded.
_USAGE_ERRORS = (flags.Error, *PARSE_ERRORS)

_DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

_MALLOC_SETTINGS = ":".join(
    [
        "glibc.malloc.hugetlb=1",  # Large pages where the system offers them.
        "glibc.malloc.trim_threshold=17179869184",  # The heap keeps up to 16 GiB
        "glibc.malloc.arena_max=1",  # and is the only one,
        "glibc.malloc.mmap_threshold=268435456",  # but for blocks of 256 MiB and more.
    ]
)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses absl flags as `app.run` does, but ends with one sentence on a mistake."""
    try:
        rest = flags.FLAGS(argv)
        # A configuration file that cannot be loaded shows only when the flag is first used.
        if "config" in flags.FLAGS and flags.FLAGS.config is not None:
            flags.FLAGS.config.is_locked  # noqa: B018
    except UserError as error:
        exit_with_error(error)
    except _USAGE_ERRORS as error:
        exit_with_error(_explain(error))
    if rest[1:]:
        exit_with_error(f"Unexpected argument {rest[1]!r}: every option begins with --.")
    return rest


def prepare_process() -> None:
    """Sets up memory, JAX and logging; to be called first thing."""
    reexec_with_malloc_settings()
    # What libraries note on the way; what they cannot do, they raise.
    logging.set_verbosity(logging.FATAL)
    sys.unraisablehook = _leave_out_closed_loops
    use_all_cores_for_convolutions()
    enable_compilation_cache()


def _leave_out_closed_loops(unraisable) -> None:
    """Drops what the rest of Orbax's reads and writes shout after one of them has failed."""
    if "Event loop is closed" not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def reexec_with_malloc_settings() -> None:
    """Starts this program anew with a C library that keeps freed memory, in large pages.

    A step on a CPU allocates hundreds of MB, which glibc would give back to the system and take
    anew each time, page by page: for CLS with two WRN-28-2 on 60 images and 2 cores .62 to .64 s a
    step so, .46 to .48 s with these settings. glibc reads them before Python starts, hence the new
    start. Only a step's largest blocks are still taken anew each time: in the heap they leave holes
    of their own size (2.68 GB so for this step, 1.39 GB outside the heap, and no difference in time
    to be seen: experiments/results/cpu_speed.md).
    """
    name, version = platform.libc_ver()
    has_settings = name == "glibc" and tuple(map(int, version.split("."))) >= (2, 35)
    if has_settings and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = _MALLOC_SETTINGS
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def use_all_cores_for_convolutions() -> None:
    """Has XLA compute convolutions on a CPU with Eigen, on all cores.

    jaxlib 0.10 hands them to YNNPACK, which uses one: forward and backward of WRN-28-2 on 60
    images and 2 cores take 507 ms so and 349 ms with Eigen, those of WRN-10-1 on 288 digits 56 and
    41 ms. The leading minus takes convolutions alone off YNNPACK's list: reductions are faster
    there. Other versions of jaxlib may not know the flag, and an unknown one ends the process.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    is_known = importlib.metadata.version("jaxlib").startswith("0.10.")
    if is_known and "xla_cpu_experimental_ynn_fusion_type" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_CONVOLUTIONS_WITH_EIGEN}".strip()


def enable_compilation_cache() -> None:
    """Keeps compiled programs on disk: the same run starts faster the second time.

    In $JAX_COMPILATION_CACHE_DIR, else in cls_jax/ of the user's cache folder.
    """
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(cache / "cls_jax"))


def _explain(error: Exception) -> str:
    text = str(error).strip()
    if text[:1] in ("'", '"') and text[-1:] == text[:1]:  # The representation of a message.
        text = text[1:-1].replace("\\n", "\n").replace("\\'", "'")
    if "Traceback" in text:  # Of a configuration file; its last line says what is wrong.
        text = text.splitlines()[-1]
    sentence = " ".join(text.split()).rstrip(".") or type(error).__name__
    sentence = sentence if len(sentence) <= 400 else sentence[:400] + " …"
    return f"{sentence}: see python main.py --help and the keys in cls_jax/config.py."


def run_to_end(function: Callable[[], None]) -> None:
    """Runs a program: what a user can mend ends it with one sentence and code 2.

    Where it was asked to stop the code is 128 + the signal's number, as in a shell.
    """
    try:
        function()
    except UserError as error:
        exit_with_error(error)
    except OSError as error:
        if error.errno not in _DISK_REFUSES:
            raise
        exit_with_error(
            f"{error.filename or 'The disk'} cannot be written ({error.strerror}): make room and "
            "give the same command again."
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
        if not _has_joined_others():
            raise
        if any(word in str(error) for word in _SIGNS_OF_A_LOST_PROCESS):
            exit_with_error(
                f"Another process of this run was lost ({str(error).splitlines()[0]}): start all "
                "again with the same command, and they go on from the newest checkpoint."
            )
        traceback.print_exc()
        exit_with_error("This process failed, see above, and the others will end too.")


def exit_with_error(error: Exception | str) -> NoReturn:
    """Prints the sentence to standard error and exits with code 2."""
    _exit(f"Error: {error}", 2)


def _exit(sentence: str, code: int) -> NoReturn:
    print(make_printable(sentence), file=sys.stderr, flush=True)
    sys.stdout.flush()
    if _has_joined_others():
        os._exit(code)  # An orderly end would wait for processes that may never answer.
    sys.exit(code)


def _has_joined_others() -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized()
