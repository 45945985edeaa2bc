# make demo          set up, train CLS on 40 labeled digits, print the result
# make test          set up, lint, run the tests in a random order
# make test-slow     set up, run the tests that take long for what they check
# make lint          set up, check style, types, and which package imports which
# make test-next     set up and run the tests with the newest Python and JAX known to work
# make package       set up, build the wheel and use it
# make doors         set up, use every documented installation in an environment of its own
# make release       set up, make and check a release without uploading it
# make sbom          set up, list what is installed with its licenses
# make lock          resolve pyproject.toml's ranges into requirements*.txt, with hashes
# make trust         kill training 20 times at random with each pipeline, compare the results
# make gpu-forecast  set up, compile the step for an H100 without having one, estimate its time
# make clean         remove .venv and build; runs/, which holds your trainings, stays
# Everything lives in .venv; PYTHON names the interpreter it is made from (3.11 or newer).

PYTHON ?= python3
VENV := .venv
# The CUDA wheels only where there is an NVIDIA driver to use them.
REQUIREMENTS := $(if $(wildcard /proc/driver/nvidia/version),requirements.txt,requirements-cpu.txt)
PIP := $(VENV)/bin/python -m pip --quiet --disable-pip-version-check
# Without bytecode, each of dozens of processes would compile the sources of JAX and TensorFlow.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo doors release test test-slow test-next lint lock trust gpu-forecast package sbom clean

demo: $(VENV)/installed
	$(VENV)/bin/python main.py --config configs/digits.py:40

# Two more at a time than there are cores, but at most four, since many tests wait for processes.
# Each takes up to 3 GB of memory. WORKERS=1 suits a machine with little.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 2 ? n + 2 : 4)))
# In the order of tests/conftest.py.
PYTEST = -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Continuous integration sets it to nothing, which runs all tests.
SELECT = not slow

# In a random order, whose seed is printed: pytest -p randomly --randomly-seed=SEED repeats it.
test: $(VENV)/compiled lint
	$(VENV)/bin/python $(PYTEST) -m '$(SELECT)' --durations=10

test-slow: $(VENV)/installed-dev
	$(VENV)/bin/python $(PYTEST) -m slow --durations=10

# Python 3.12 and newer take a newer JAX from the same lock; NEXT_PYTHON names the interpreter.
NEXT_PYTHON ?= python3.12
NEXT_VENV := build/venv-next

test-next: $(NEXT_VENV)/installed
	$(NEXT_VENV)/bin/python $(PYTEST)

$(NEXT_VENV)/installed: requirements-dev.txt $(VENV)/bin/uv
	$(NEXT_PYTHON) -m venv $(NEXT_VENV)
	.ci/uv pip install --quiet --python $(NEXT_VENV) --require-hashes -r $<
	touch $@

# The CUDA wheels hold the compiler; they need neither a GPU nor its driver, but 3 GB of disk.
GPU_VENV := build/venv-gpu

gpu-forecast: $(GPU_VENV)/installed
	$(GPU_VENV)/bin/python -m experiments.benchmarks.gpu_forecast --config.mu=7

$(GPU_VENV)/installed: requirements.txt
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

# Saves more often than the demo's every 100 steps, which changes no bit of the result.
SOAK = $(VENV)/bin/python -m experiments.studies.soak --stops 20 --steps 200 350 500 \
  --config configs/digits.py:40 --config.checkpoint_every=20
trust: $(VENV)/installed
	rm -rf runs/trust-tfdata runs/trust-device
	$(SOAK) --runs runs/trust-tfdata --output runs/trust-tfdata.md --config.data.pipeline=tfdata
	$(SOAK) --runs runs/trust-device --output runs/trust-device.md --config.data.pipeline=device

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/python -m tests.lint
	$(VENV)/bin/mdformat --check *.md docs experiments
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

# The wheel as its users get it: every file that the program opens is in it, none of an earlier version
# is, and every extra resolves.
package: $(VENV)/installed-dev
	rm -rf build/package
	mkdir -p build/lib/cls_jax && touch build/lib/cls_jax/of_an_earlier_version.py
	.ci/uv build --quiet --wheel --out-dir build/package
	.ci/uv pip install --quiet --python $(VENV) --no-deps --target build/package/site build/package/*.whl
	cd build/package && PYTHONPATH=site $(CURDIR)/$(VENV)/bin/python -P -c '$(USE_PACKAGE)'
	echo "cls-jax[$(EXTRAS)] @ file://$$(ls $(CURDIR)/build/package/*.whl)" | .ci/uv pip compile --quiet \
	  --python $(VENV) --constraints requirements-dev.txt - >/dev/null
# What resolves together also resolves one by one.
EXTRAS := cpu,cuda,dicom,experiments,heif,label,onnx,parquet,pretrained,scale,shards,tf,tiff
USE_PACKAGE := import cls_jax, pathlib; from cls_jax.photos.report import page; \
  folder = pathlib.Path(cls_jax.__file__).parent; \
  assert folder.match("build/package/site/cls_jax") and (folder / "py.typed").exists(), folder; \
  assert not (folder / "of_an_earlier_version.py").exists()

# The wheel as its users install it: a fresh environment for each row of docs/installation.md.
doors: $(VENV)/installed-dev
	rm -rf build/doors
	.ci/uv build --quiet --wheel --out-dir build/doors
	$(VENV)/bin/python -m tests.doors

# Everything about a release but the upload: version, changelog, sdist and wheel, and an installation
# from the sdist. Prints what would be uploaded.
release: $(VENV)/installed-dev
	rm -rf build/release
	$(VENV)/bin/python -c '$(CHECK_CHANGELOG)'
	.ci/uv build --quiet --out-dir build/release
	$(VENV)/bin/twine check --strict build/release/*.whl build/release/*.tar.gz
	.ci/uv venv --quiet --python $(VENV)/bin/python build/release/venv
	.ci/uv pip install --quiet --python build/release/venv --constraints requirements-dev.txt \
	  build/release/*.tar.gz
	cd build/release && venv/bin/cls-jax --version && venv/bin/cls-jax help installation >/dev/null
	@echo "To upload: twine upload" && ls -l build/release/*.whl build/release/*.tar.gz
CHECK_CHANGELOG := import tomllib; \
  version = tomllib.load(open("pyproject.toml", "rb"))["project"]["version"]; \
  assert f"\n\#\# {version}\n" in open("CHANGELOG.md").read(), f"CHANGELOG.md lacks {version}"

# What is installed, with versions and licenses: build/sbom.json, as CycloneDX.
sbom: $(VENV)/installed-dev
	mkdir -p build
	$(VENV)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom.json $(VENV)/bin/python

# Ranges of pyproject.toml → every direct and indirect dependency with version and hashes, for all
# platforms and Pythons in one file. Versions stay while they fit; UPGRADE=--upgrade takes the newest.
# The lock names no index, so that any can be used.
UPGRADE :=
COMPILE := .ci/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make lock'
RUNTIME := --extra experiments --extra tf
lock: $(VENV)/bin/uv
	$(COMPILE) $(UPGRADE) pyproject.toml $(RUNTIME) --extra dicom --extra heif --extra label \
	  --extra onnx --extra parquet --extra pretrained --extra scale --extra shards --extra tiff \
	  --group dev --output-file requirements-dev.txt
	$(COMPILE) pyproject.toml $(RUNTIME) \
	  --constraints requirements-dev.txt --output-file requirements-cpu.txt
	$(COMPILE) $(UPGRADE) pyproject.toml $(RUNTIME) --extra cuda \
	  --constraints requirements-dev.txt --output-file requirements.txt
	$(COMPILE) $(UPGRADE) --group installer --output-file requirements-uv.txt

# uv installs several times faster than pip; where it cannot run, pip installs the same files.
INSTALL = .ci/uv pip install --quiet --python $(VENV) --require-hashes --build-constraints $(1) -r $(1) \
  || $(PIP) install --require-hashes -r $(1)
$(VENV)/installed: $(VENV)/bin/uv $(REQUIREMENTS) pyproject.toml
	$(call INSTALL,$(REQUIREMENTS))
	$(PIP) install --no-deps --no-build-isolation --editable .  # The command cls-jax.
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.txt
	$(call INSTALL,requirements-dev.txt)
	touch $@

# Python compiles what tests import once here, and not in all workers at the same time.
$(VENV)/compiled: $(VENV)/installed-dev
	$(VENV)/bin/python -m pytest --collect-only -qq >/dev/null || true
	touch $@

$(VENV)/bin/uv: requirements-uv.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cls_jax needs Python 3.11 or newer: run make PYTHON=python3.12 (or another)")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements-uv.txt
	touch $@

clean:
	rm -rf $(VENV) build
