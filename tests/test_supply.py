"""Nothing is imported that is not declared, and what is installed is what is locked."""

import ast
import functools
import importlib.metadata
import re
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

# PyTorch and its models, and the released code of the paper's authors: compared with by hand.
FOREIGN = {"models", "randaugment", "torch", "timm", "torchvision", "efficientnet_lite_pytorch"}
PROJECT = {"cls_jax", "configs", "docs", "experiments", "main", "tests"}
LOCKS = ["requirements.txt", "requirements-cpu.txt", "requirements-dev.txt", "requirements-uv.txt"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@functools.cache
def read_lock(file):
    """The entries of a lock, each a requirement with its hashes behind it."""
    lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def read_pins(file, python=None):
    """Name → version of what a lock installs on Linux with this Python, or another."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"} if python else {}
    requirements = [Requirement(line.split("--hash")[0]) for line in read_lock(file)]
    pins = {}
    for requirement in requirements:
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (specifier,) = requirement.specifier
            pins[canonicalize_name(requirement.name)] = specifier.version
    return pins


def read_project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def read_declared(*, with_tools=False):
    """What pyproject.toml asks for, extras included, and the tools of development if wanted."""
    project = read_project()
    lists = [project["project"]["dependencies"]]
    lists += project["project"]["optional-dependencies"].values()
    lists += project["dependency-groups"].values() if with_tools else []
    return [Requirement(line) for lines in lists for line in lines]


def get_names(requirements):
    return {canonicalize_name(requirement.name) for requirement in requirements}


def find_imports(path):
    """Top-level names that a file imports anywhere, `importlib.import_module` included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value.split(".")[0] for a in node.args if isinstance(a, ast.Constant))


def find_undeclared(paths, declared):
    """File → names it imports that no declared distribution provides."""
    provided = importlib.metadata.packages_distributions()
    known = set(sys.stdlib_module_names) | PROJECT | FOREIGN
    found = {}
    for path in paths:
        for name in set(find_imports(path)) - known:
            owners = {canonicalize_name(owner) for owner in provided.get(name, [name])}
            if not owners & declared:
                found.setdefault(str(path.relative_to(ROOT)), set()).add(name)
    return found


def test_the_package_imports_only_what_it_declares():
    files = [ROOT / "main.py", *(ROOT / "cls_jax").rglob("*.py")]
    assert find_undeclared(files, get_names(read_declared())) == {}


def test_programs_and_tests_import_only_what_is_declared_or_locked():
    folders = ("configs", "experiments", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    declared = get_names(read_declared(with_tools=True)) | set(read_pins("requirements-dev.txt"))
    assert find_undeclared(files, declared) == {}


def test_nothing_is_unpickled_or_run_that_was_read():
    forbidden = {"eval", "exec", "compile", "os.system", "np.load", "joblib.load", "yaml.load"}
    modules = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "subprocess"}
    for path in [ROOT / "main.py", *(ROOT / "cls_jax").rglob("*.py")]:
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        calls = {
            ast.unparse(node.func)
            for node in nodes
            if isinstance(node, ast.Call) and "allow_pickle=False" not in ast.unparse(node)
        }
        assert not calls & forbidden, path
        assert not set(find_imports(path)) & modules, path


@pytest.mark.parametrize("file", LOCKS)
def test_every_locked_entry_is_one_version_with_hashes_and_from_no_named_place(file):
    for line in read_lock(file):
        assert re.match(r"[\w.-]+==[\w.]+( ;.*?)?( +--hash=sha256:[0-9a-f]{64})+$", line), line


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_agree(python):
    gpu, cpu, dev = (read_pins(file, python) for file in LOCKS[:3])
    assert cpu.items() <= gpu.items()
    assert cpu.items() <= dev.items()
    assert any(name.startswith("nvidia-") for name in gpu)
    assert not any(name.startswith("nvidia-") for name in dev)


@pytest.mark.parametrize("python", PYTHONS)
def test_locked_versions_are_within_declared_ranges(python):
    """Fails where pyproject.toml has changed since the last `make lock`."""
    pins = {name: version for file in LOCKS for name, version in read_pins(file, python).items()}
    environment = {"python_version": python, "extra": ""}
    for requirement in read_declared(with_tools=True):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            version = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement


@pytest.mark.parametrize("python", PYTHONS[:3])
def test_tensorflow_is_a_candidate_only_where_there_is_no_release(python):
    assert re.fullmatch(r"[\d.]+", read_pins("requirements-cpu.txt", python)["tensorflow-cpu"])


def test_python_311_gets_the_last_jax_it_can_have_and_newer_ones_a_newer():
    assert read_pins("requirements-cpu.txt", "3.11")["jax"].startswith("0.10.")
    assert read_pins("requirements-cpu.txt", "3.12")["jax"].startswith("0.11.")


def test_what_is_installed_is_what_is_locked():
    installed = {
        canonicalize_name(distribution.metadata["Name"]): distribution.version
        for distribution in importlib.metadata.distributions()
    }
    cpu, dev = read_pins("requirements-cpu.txt"), read_pins("requirements-dev.txt")
    assert cpu.items() <= installed.items()
    assert {name: installed[name] for name in installed.keys() & dev.keys()}.items() <= dev.items()


def test_everything_installed_names_its_license():
    for name in read_pins("requirements-cpu.txt"):
        metadata = importlib.metadata.metadata(name)
        fields = ("License-Expression", "License", "License-File")
        classifiers = metadata.get_all("Classifier", [])
        licenses = [line for line in classifiers if line.startswith("License :: ")]
        assert any(metadata.get(field) for field in fields) or licenses, name
