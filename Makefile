# make demo   set up, train CLS on 40 labelled digits, print the result
# make test   set up, lint, run the tests, two at a time: most of their time is compilation
# make sbom   set up, list what is installed with its licences
# Everything lives in .venv; PYTHON names the interpreter it is made from (3.11 or newer).

PYTHON ?= python3
VENV := .venv
# The CUDA wheels only where there is an NVIDIA driver to use them.
REQUIREMENTS := $(if $(wildcard /proc/driver/nvidia/version),requirements.txt,requirements-cpu.txt)

.PHONY: demo test sbom lint clean

demo: $(VENV)/installed
	$(VENV)/bin/python main.py --config configs/digits.py:40

test: $(VENV)/installed-dev lint
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

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
