"""All imports are declared dependencies, and the installed versions are the locked ones."""

import ast
import functools
import importlib.metadata
import itertools
import re
import sys
import tomllib
from fnmatch import fnmatch

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cls_jax.config import get_options, list_options
from cls_jax.extras import MODULES
from cls_jax.methods import METHODS
from docs.write_configuration import PAGE, create_page
from tests.conftest import ROOT

# PyTorch and its models, and the released code of the paper's authors: compared with by hand.
FOREIGN = {"models", "randaugment", "torch", "timm", "torchvision", "efficientnet_lite_pytorch"}
PROJECT = {"cls_jax", "configs", "docs", "experiments", "main", "tests"}
TABLES = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = TABLES["project"]["optional-dependencies"]
PROVIDED = importlib.metadata.packages_distributions()
LOCKS = ["requirements.txt", "requirements-cpu.txt", "requirements-dev.txt", "requirements-uv.txt"]


@functools.cache
def read_lock(file):
    """The entries of a lock, each a requirement with its hashes behind it."""
    lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def read_pins(file, python=None):
    """Name → version of what a lock installs on Linux with this Python, or another."""
    environment = {"python_version": python, "python_full_version": f"{python}.0"} if python else {}
    pins = {}
    for line in read_lock(file):
        requirement = Requirement(line.split("--hash")[0])
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (specifier,) = requirement.specifier
            pins[canonicalize_name(requirement.name)] = specifier.version
    return pins


def read_declared():
    """What pyproject.toml asks for, extras included, and the tools of development."""
    needed = [TABLES["project"]["dependencies"], *EXTRAS.values()]
    tools = TABLES["dependency-groups"].values()
    return [[Requirement(line) for lines in part for line in lines] for part in (needed, tools)]


def read_installed_by(extra=None):
    """The packages of the base installation and, if it is named, of an extra."""
    lines = TABLES["project"]["dependencies"] + EXTRAS.get(extra, [])
    return {canonicalize_name(Requirement(line).name) for line in lines}


def walk_imports(node, is_at_once):
    """Dotted names that a syntax tree imports anywhere, `importlib.import_module` included.

    Or only those that it imports as soon as it is imported itself.
    """
    for child in ast.iter_child_nodes(node):
        is_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        is_later |= isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (child.module, *(f"{child.module}.{alias.name}" for alias in child.names))
        elif isinstance(child, ast.Call) and ast.unparse(child.func).endswith("import_module"):
            yield from (one.value for one in child.args if isinstance(one, ast.Constant))
        if not (is_at_once and is_later):
            yield from walk_imports(child, is_at_once)


@functools.cache
def find_imports(path):
    """Top-level names that a file imports anywhere."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(name.split(".")[0] for name in walk_imports(tree, is_at_once=False))


def find_owners(name):
    """The packages that provide a top-level name, or the name itself."""
    return {canonicalize_name(owner) for owner in PROVIDED.get(name, [name])}


def test_only_what_is_declared_is_imported_and_the_package_needs_no_tool():
    needed, tools = ({canonicalize_name(r.name) for r in part} for part in read_declared())
    locked = needed | tools | set(read_pins("requirements-dev.txt"))
    known = set(sys.stdlib_module_names) | PROJECT | FOREIGN
    for folder in ("cls_jax", "configs", "experiments", "tests"):
        declared = needed if folder == "cls_jax" else locked
        for path in [ROOT / "main.py", *(ROOT / folder).rglob("*.py")]:
            for name in find_imports(path) - known:
                assert find_owners(name) & declared, (path, name)


# What may import an extra's packages at once: these modules are only imported, by functions, where
# the extra is needed. The example is a script beside an exported network.
MODULES_OF_EXTRAS = {
    "cls_jax.data.augment.tf_augment": "tf",
    "cls_jax.data.host_tensorflow": "tf",
    "cls_jax.data.pipelines.tfdata": "tf",
    "cls_jax.photos.inference.export_example": "onnx",
    "cls_jax.photos.labeling.guard": "label",
    "cls_jax.photos.labeling.server": "label",
    "cls_jax.photos.labeling.start": "label",
}


def find_guards(text):
    """The extras that a module's source checks for, by name or as the `extra` of a row."""
    checked = re.findall(r"\b(?:(?:check_extra|is_installed)\(\s*|extra=)\"([\w,]+)\"", text)
    return {extra for extras in checked for extra in extras.split(",")}


def test_the_table_of_extras_is_that_of_the_project_and_of_the_documentation():
    assert EXTRAS.keys() - MODULES.keys() == {"cpu", "cuda", "experiments"}
    page = (ROOT / "docs" / "installation.md").read_text("utf-8")
    assert sorted(re.findall(r"\| `(\w+)` \|$", page, re.M)) == sorted(EXTRAS)
    for extra, modules in MODULES.items():
        brought = read_installed_by(extra)
        for module in modules:
            assert find_owners(module) & brought, module


def test_whatever_imports_a_package_of_an_extra_checks_for_the_extra_first():
    """A missing extra is one sentence, or a way without it, and never a traceback."""
    of_extras = {module: extra for extra, modules in MODULES.items() for module in modules}
    for path in (ROOT / "cls_jax").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        text = path.read_text("utf-8")
        needed = {of_extras[name] for name in find_imports(path) if name in of_extras}
        assert needed <= find_guards(text) | {MODULES_OF_EXTRAS.get(module)}, module


def test_modules_import_only_what_their_installation_has():
    """With every extra installed, as here, an import that users do not have goes unnoticed."""
    known = {"cls_jax", *sys.stdlib_module_names}
    for path in (ROOT / "cls_jax").rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        extra = MODULES_OF_EXTRAS.get(module)
        installed = read_installed_by(extra)
        for name in walk_imports(ast.parse(path.read_text("utf-8")), is_at_once=True):
            assert MODULES_OF_EXTRAS.get(name, extra) == extra, (module, name)
            if (top := name.split(".")[0]) not in known:
                assert find_owners(top) & installed, (module, name)


def test_nothing_is_unpickled_or_run_that_was_read():
    forbidden = {"eval", "exec", "compile", "os.system", "np.load", "joblib.load", "yaml.load"}
    modules = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "subprocess"}
    # Its subclass looks up names in a list of its own and calls nothing of the class it is from.
    weights = ROOT / "cls_jax/models/weights/torch_file.py"
    training = ROOT / "cls_jax/photos/labeling/training.py"
    assert "shell=" not in training.read_text("utf-8")
    names = set(re.findall(r"\bpickle\.\w+|super\(\)\.\w+", weights.read_text("utf-8")))
    assert names == {"pickle._Unpickler", "pickle.UnpicklingError", "super().__init__"}
    for path in [ROOT / "main.py", *(ROOT / "cls_jax").rglob("*.py")]:
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        found = [ast.unparse(node) for node in calls if ast.unparse(node.func) in forbidden]
        assert all("allow_pickle=False" in call for call in found), path
        # The page starts the same command that a person would type, never a shell.
        allowed = {weights: {"pickle"}, training: {"subprocess"}}.get(path, set())
        assert not find_imports(path) & modules - allowed, path


@pytest.mark.parametrize("python", ["3.11", "3.14"])
def test_locks_agree_and_their_versions_are_within_declared_ranges(python):
    """Fails where pyproject.toml has changed since the last `make lock`."""
    for line in (line for file in LOCKS for line in read_lock(file)):
        assert re.match(r"[\w.-]+==[\w.]+( ;.*?)?( +--hash=sha256:[0-9a-f]{64})+$", line), line
    gpu, cpu, dev, uv = (read_pins(file, python) for file in LOCKS)
    assert cpu.items() <= gpu.items()
    assert cpu.items() <= dev.items()
    assert any(name.startswith("nvidia-") for name in gpu.keys() - dev.keys())
    pins, environment = gpu | dev | uv, {"python_version": python, "extra": ""}
    for requirement in itertools.chain(*read_declared()):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            version = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement


def test_what_is_installed_is_what_is_locked():
    found = importlib.metadata.distributions()
    installed = {canonicalize_name(one.metadata["Name"]): one.version for one in found}
    cpu, dev = read_pins("requirements-cpu.txt"), read_pins("requirements-dev.txt")
    assert cpu.items() <= installed.items()
    assert {name: installed[name] for name in installed.keys() & dev.keys()}.items() <= dev.items()


PAGES = [
    path for where in ("*.md", "docs/*.md", "experiments/**/*.md") for path in ROOT.glob(where)
]


def find_links(text):
    """Relative targets of links and pictures, and places on the page itself."""
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return {target for target in targets if not re.match(r"\w+:", target)}


def leads_somewhere(page, link):
    path, _, place = link.partition("#")
    target = page.parent / path if path else page
    headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M) if place else []
    anchors = [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings]
    return target.exists() and (not place or place in anchors)


def find_tests(text):
    """(file or folder, name of a test or "") for everything quoted in tests/ that git knows."""
    return set(re.findall(r"`(tests/\w[\w/.]*)(?:::(\w+))?`", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_named_tests_exist(page):
    text = page.read_text("utf-8")
    assert [link for link in find_links(text) if not leads_somewhere(page, link)] == []
    for file, name in find_tests(text):
        assert (ROOT / file).exists(), file
        if name:
            nodes = ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
            assert name in {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_package_is_on_the_page_of_the_architecture():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for house, prefix in ((ROOT / "cls_jax", ""), (ROOT / "cls_jax" / "photos", "photos/")):
        for package in house.iterdir():
            is_house = package == ROOT / "cls_jax" / "photos"
            if not is_house and not package.name.startswith("__") and package.suffix != ".typed":
                name = f"{prefix}{package.name}{'/' if package.is_dir() else ''}"
                assert f"`{name}`" in page, package
    assert find_links(page)
    assert find_tests((ROOT / "docs" / "trust.md").read_text("utf-8"))


def test_page_of_the_configuration_is_current_and_has_every_key_in_tables_of_even_rows():
    page = create_page()
    assert PAGE.read_text("utf-8") == page, "run python -m docs.write_configuration"
    assert all(f"| `{key}`" in page for key in list_options() if key != "method.name")
    rows = [line.split(" | ") for line in page.splitlines()]
    for method in METHODS:
        for key in set(get_options(method)) - set(list_options()):
            of_key = [re.findall(r"`([\w*]+)`", row[2]) for row in rows if row[0] == f"| `{key}`"]
            found = [names for names in of_key if any(fnmatch(method, name) for name in names)]
            assert len(found) == 1, (method, key)
    for table in page.split("\n\n"):
        if table.startswith("|"):
            rows = [line for line in table.splitlines() if not line.startswith("| --")]
            assert len({row.count(" | ") for row in rows}) == 1
