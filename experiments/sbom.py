"""Writes what is installed beside this program as a software bill of materials (CycloneDX, JSON).

python -m experiments.sbom [FILE]
"""

import importlib.metadata
import json
import pathlib
import re
import sys
from typing import Any

FILE = pathlib.Path("build/sbom.json")
_LONGEST_NAME = 80  # What is longer is not a licence's name but its text.


def find_licence(metadata: importlib.metadata.PackageMetadata) -> str | None:
    """The licence that a distribution names: as SPDX expression, in words, or by classifiers."""
    expression, words = metadata.get("License-Expression"), metadata.get("License")
    prefix = "License :: "
    classifiers = [
        classifier.split(" :: ")[-1]
        for classifier in metadata.get_all("Classifier", [])
        if classifier.startswith(prefix) and classifier != f"{prefix}OSI Approved"
    ]
    # Some put the whole text there; its first line is the name.
    lines = [line.strip() for line in (words or "").splitlines() if line.strip()]
    named = lines[0] if lines and len(lines[0]) <= _LONGEST_NAME else None
    return expression or " and ".join(classifiers) or named


def create_component(distribution: importlib.metadata.Distribution) -> dict[str, Any]:
    """A distribution as CycloneDX describes it."""
    name, version = distribution.metadata["Name"], distribution.version
    licence = find_licence(distribution.metadata)
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}",
        "licenses": [{"license": {"name": licence}}] if licence else [],
    }


def create_bill() -> dict[str, Any]:
    """All distributions of this environment, sorted by name: the same for the same environment."""
    components = {
        component["purl"]: component
        for component in map(create_component, importlib.metadata.distributions())
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "cls-jax"}},
        "components": [components[purl] for purl in sorted(components)],
    }


def main() -> None:
    """Writes the file and says how many distributions it names."""
    file = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    bill = create_bill()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bill, indent=1) + "\n")
    unknown = [part["name"] for part in bill["components"] if not part["licenses"]]
    print(f"{len(bill['components'])} distributions: {file}")
    print(f"Without a licence in their metadata: {', '.join(unknown) or 'none'}")


if __name__ == "__main__":
    main()
