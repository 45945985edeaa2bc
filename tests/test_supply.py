"""Nothing is imported that is not declared, and what is installed is what is pinned."""

import ast
import importlib.metadata
import pathlib
import re
import sys
import tomllib

import pytest

from experiments.sbom import create_bill, find_licence
from tests.conftest import ROOT

# The released PyTorch code of the paper's authors, which one benchmark compares with by hand.
FOREIGN = {"models", "randaugment", "torch"}
PROJECT = {"cls_jax", "configs", "experiments", "main", "tests"}


def normalize(name):
    return re.sub("[-_.]+", "-", name).lower()


def read_pins(file):
    """Name → version of a requirements file and those it includes; markers must all hold here."""
    pins = {}
    for line in (ROOT / file).read_text().splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("-r "):
            pins |= read_pins(line.removeprefix("-r "))
        elif line:
            requirement, _, marker = line.partition(";")
            match = re.fullmatch(r"([\w.-]+)(\[[\w,]+\])?==([\w.]+)", requirement.strip())
            assert match, f"{file}: {line} is not pinned"
            if 'sys_platform != "linux"' not in marker or sys.platform != "linux":
                pins[normalize(match[1])] = match[3]
    return pins


def read_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return {normalize(re.match(r"[\w.-]+", line)[0]) for group in groups for line in group}


def find_imports(path):
    """Top-level names that a file imports anywhere, `importlib.import_module` included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.split(".")[0]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value.split(".")[0] for a in node.args if isinstance(a, ast.Constant))


def list_files():
    folders = ("cls_jax", "configs", "experiments", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [ROOT / "main.py", *files]


def test_every_import_is_declared():
    provided = importlib.metadata.packages_distributions()
    pins = read_pins("requirements-cpu.txt") | read_pins("requirements-dev.txt")
    declared = read_declared() | set(pins)
    for path in list_files():
        for name in set(find_imports(path)) - set(sys.stdlib_module_names) - PROJECT - FOREIGN:
            distributions = {normalize(owner) for owner in provided.get(name, [name])}
            assert distributions & declared, f"{path.relative_to(ROOT)} imports {name}"


def test_what_the_package_imports_is_a_dependency_of_it():
    provided = importlib.metadata.packages_distributions()
    declared = read_declared()
    for path in (ROOT / "cls_jax").rglob("*.py"):
        for name in set(find_imports(path)) - set(sys.stdlib_module_names) - PROJECT:
            distributions = {normalize(owner) for owner in provided.get(name, [name])}
            distributions |= {owner.removesuffix("-cpu") for owner in distributions}
            assert distributions & declared, f"{path.relative_to(ROOT)} imports {name}"


def test_nothing_is_unpickled_or_run_that_was_read():
    forbidden = {"eval", "exec", "compile", "os.system", "np.load", "joblib.load", "yaml.load"}
    modules = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "subprocess"}
    for path in [ROOT / "main.py", *(ROOT / "cls_jax").rglob("*.py")]:
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        assert not calls & forbidden, path
        assert not set(find_imports(path)) & modules, path


@pytest.mark.parametrize("file", ["requirements-cpu.txt", "requirements-dev.txt"])
def test_what_is_installed_is_what_is_pinned(file):
    for name, version in read_pins(file).items():
        distribution = importlib.metadata.distribution(name)
        assert distribution.version == version, name
        assert find_licence(distribution.metadata), f"{name} names no licence"


def test_both_requirements_files_pin_the_same():
    assert read_pins("requirements.txt") == read_pins("requirements-cpu.txt")


def test_pins_are_within_what_the_package_accepts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = read_pins("requirements-cpu.txt")
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for line in (line for group in groups for line in group):
        name, low = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", line).groups()
        if normalize(name) in pins:
            assert to_numbers(pins[normalize(name)]) >= to_numbers(low), line


def to_numbers(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def test_bill_of_materials_names_every_pin_with_its_licence():
    bill = create_bill()
    components = {normalize(part["name"]): part for part in bill["components"]}
    for name, version in read_pins("requirements-cpu.txt").items():
        assert components[name]["version"] == version
        assert components[name]["purl"] == f"pkg:pypi/{name}@{version}"
        assert components[name]["licenses"]
    assert [part["purl"] for part in bill["components"]] == sorted(
        part["purl"] for part in bill["components"]
    )
    assert pathlib.Path(ROOT / "Makefile").read_text().count("experiments.sbom") == 1
