"""Rules about the source tree, and the proof that each rule notices when it is broken."""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from helpers_source_rules import PACKAGE, ROOT, banned_imports, environment_reads, imported_modules, parse, source_files, unsafe_loads

TORCH_PACKAGES = {"ops", "layers", "models", "engine", "weights", "quantization", "worker"}
APART = {"tensorflow", "text-generation", "text_generation", "xgrammar"}
"""What runs in an environment of its own, since it doesn't go together with the rest, or is only compared with by a benchmark."""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@functools.cache
def _distributions() -> dict[str, set[str]]:
    """Import name to the distributions that bring it, as they are written in requirements."""
    return {top: {name.lower().replace("_", "-") for name in names} for top, names in packages_distributions().items()}


def _distributions_of(module: str) -> set[str]:
    return _distributions().get(module, {module})


def _relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def _top_level_modules() -> set[str]:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    return folders | {path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import pickle", [1]),
        ("x = 1\nfrom pickle import loads", [2]),
        ("import importlib\nimportlib.import_module('dill')", [2]),
        ("def f():\n    import marshal", [2]),
        ("import json\nfrom trivium import pickled", []),
    ],
)
def test_banned_imports_are_found_wherever_they_hide(source: str, lines: list[int]) -> None:
    assert banned_imports(source) == lines


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import os\nos.environ['A']", [2]),
        ("import os as system\nsystem.getenv('A')", [2]),
        ("from os import environ", [1]),
        ("import os\nos.getcwd()", []),
        ("from trivium import env\nenv.get('A')", []),
    ],
)
def test_environment_reads_are_found_under_any_name(source: str, lines: list[int]) -> None:
    assert environment_reads(source) == lines


def test_unsafe_torch_load_is_found() -> None:
    assert unsafe_loads("import torch\ntorch.load(f)\ntorch.load(f, weights_only=True)\ntorch.load(f, weights_only=flag)") == [2, 4]


def test_nothing_imports_a_module_that_runs_code_on_loading() -> None:
    found = {_relative(path): lines for path in source_files() if (lines := banned_imports(path.read_text()) + unsafe_loads(path.read_text()))}
    assert found == {}


def test_only_env_reads_the_environment() -> None:
    found = {_relative(path): lines for path in source_files() if (lines := environment_reads(path.read_text()))}
    assert set(found) <= {"env.py"}, found


def test_every_module_has_a_docstring() -> None:
    assert [_relative(path) for path in source_files() if not ast.get_docstring(parse(path.read_text()))] == []


def test_files_stay_readable_in_one_sitting() -> None:
    assert {_relative(path): count for path in source_files() if (count := len(path.read_text().splitlines())) > 500} == {}


def test_third_party_imports_are_declared() -> None:
    extras = [name for name in PYPROJECT["project"]["optional-dependencies"] if name not in ("test", "dev", "examples")]
    declared = _required() | _required(*extras) | {"triton"}
    undeclared: dict[str, str] = {}
    for path in source_files():
        for _, module in imported_modules(path.read_text()):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top == "trivium":
                continue
            if not _distributions_of(top) & declared:
                undeclared[top] = _relative(path)
    assert undeclared == {}


def test_declared_dependencies_are_imported() -> None:
    """A dependency nobody imports is a download for nothing. uvicorn picks up httptools and uvloop by itself."""
    used = {module.split(".")[0] for path in source_files() for _, module in imported_modules(path.read_text())}
    used_distributions = {name for module in used for name in _distributions_of(module)}
    declared = {_distribution(requirement) for requirement in PYPROJECT["project"]["dependencies"]}
    assert declared - used_distributions <= {"httptools", "uvloop"}


def _required(*extras: str) -> set[str]:
    """Distributions that `trivium[extras]` asks for beyond the package's own dependencies, or these, without an argument."""
    project = PYPROJECT["project"]
    requirements = [entry for extra in extras for entry in project["optional-dependencies"][extra]] if extras else project["dependencies"]
    inner = [name for entry in requirements if entry.startswith("trivium[") for name in entry[len("trivium[") : -1].split(",")]
    return {_distribution(entry) for entry in requirements if not entry.startswith("trivium[")} | (_required(*inner) if inner else set())


def _distribution(requirement: str) -> str:
    name = requirement.split(";")[0].split("[")[0]
    for separator in (">", "<", "=", "~", "!"):
        name = name.split(separator)[0]
    return name.strip().lower().replace("_", "-")


def test_types_are_strict_everywhere_but_in_device_code() -> None:
    strict = {Path(entry).name for entry in PYPROJECT["tool"]["basedpyright"]["strict"]} - {"*.py"}
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders - TORCH_PACKAGES - strict == set()
    assert strict & TORCH_PACKAGES == set()


def test_torch_contract_covers_every_module_outside_the_engine() -> None:
    contract = next(entry for entry in PYPROJECT["tool"]["importlinter"]["contracts"] if entry.get("forbidden_modules") == ["torch", "triton"])
    covered = {name.removeprefix("trivium.") for name in contract["source_modules"]}
    assert _top_level_modules() - TORCH_PACKAGES - covered == set()
    assert covered & TORCH_PACKAGES == set()


def test_tests_and_benchmarks_import_only_what_the_test_extra_installs() -> None:
    """Something installed by hand here would be missing elsewhere, and `importorskip` would hide it. triton comes with setup.sh."""
    declared = _required() | _required("test") | {"triton", "hatchling"} | APART
    paths = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")])
    own = {path.stem for path in paths} | {"trivium"}
    undeclared = {
        top: str(path.relative_to(ROOT))
        for path in paths
        for top in sorted({module.split(".")[0] for _, module in imported_modules(path.read_text())} - own - set(sys.stdlib_module_names))
        if not _distributions_of(top) & declared
    }
    assert undeclared == {}
