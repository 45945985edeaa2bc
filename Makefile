# make demo   set up, train CLS on 40 labelled digits, print the result
# make test   set up, lint, run the tests, two at a time: most of their time is compilation
# make test-next     set up and run the tests with the newest Python and JAX that we know to work
# make gpu-forecast  set up, compile the step for H100s without one, count and add up
# make sbom   set up, list what is installed with its licences
# Everything lives in .venv; PYTHON names the interpreter it is made from (3.11 or newer).

PYTHON ?= python3
VENV := .venv
# The CUDA wheels only where there is an NVIDIA driver to use them.
REQUIREMENTS := $(if $(wildcard /proc/driver/nvidia/version),requirements.txt,requirements-cpu.txt)

.PHONY: demo test test-next sbom gpu-forecast lint clean

demo: $(VENV)/installed
	$(VENV)/bin/python main.py --config configs/digits.py:40

test: $(VENV)/installed-dev lint
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

# The versions to come, in an environment of its own; NEXT_PYTHON names the interpreter.
NEXT_PYTHON ?= python3.12
NEXT_JAX := jax==0.11.2
NEXT_VENV := build/venv-next

test-next: $(NEXT_VENV)/installed
	$(NEXT_VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

$(NEXT_VENV)/installed: requirements-common.txt requirements-dev.txt
	$(NEXT_PYTHON) -m venv $(NEXT_VENV)
	$(NEXT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(NEXT_JAX) -r requirements-common.txt -r requirements-dev.txt
	touch $@

# The CUDA wheels hold the compiler; they need neither a GPU nor its driver, but 3 GB of disk.
GPU_VENV := build/venv-gpu

gpu-forecast: $(GPU_VENV)/installed
	$(GPU_VENV)/bin/python -m experiments.gpu_forecast --config.mu=7

$(GPU_VENV)/installed: requirements.txt requirements-common.txt
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

# What is installed, with versions and licences: build/sbom.json, as CycloneDX.
sbom: $(VENV)/installed
	$(VENV)/bin/python -m experiments.sbom

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

$(VENV)/installed: $(REQUIREMENTS) requirements-common.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cls_jax needs Python 3.11 or newer: run make PYTHON=python3.12 (or another)")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) runs
