"""What `import trivium` costs and exports, and what ends up in the wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

from helpers_source_rules import PACKAGE, ROOT

import trivium

ALLOWED = {"trivium"}
"""Third-party modules that `import trivium` may load: none."""


def _modules_after(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; import json; print(json.dumps(sorted(set(sys.modules) - before)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "src")
    return {name.split(".")[0] for name in json.loads(run.stdout)}


def test_importing_the_package_loads_nothing_else() -> None:
    assert _modules_after("import trivium") - set(sys.stdlib_module_names) == ALLOWED


def test_sampling_params_need_no_torch() -> None:
    assert "torch" not in _modules_after("from trivium import SamplingParams")


def test_the_command_starts_without_the_heavy_libraries() -> None:
    loaded = _modules_after("import trivium.cli.main")
    assert not loaded & {"torch", "numpy", "starlette", "uvicorn", "transformers", "huggingface_hub", "rich"}


def test_exported_names_are_the_ones_we_mean() -> None:
    assert trivium.__all__ == ["LLM", "SamplingParams", "StructuredOutputsParams", "__version__"]
    assert set(dir(trivium)) == set(trivium.__all__)


def test_wheel_holds_sources_and_assets(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert f"-{trivium.__version__}-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        inside = {name.removeprefix("trivium/") for name in archive.namelist() if name.startswith("trivium/")}
    wanted = {
        str(path.relative_to(PACKAGE)) for suffix in (".py", ".cpp", ".h", ".html", ".js", ".css", ".typed") for path in PACKAGE.rglob(f"*{suffix}")
    }
    assert wanted - inside == set()
    assert not any(name.endswith((".so", ".pyc")) for name in inside)
