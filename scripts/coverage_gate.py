"""Fail when a file of the packages that promise full line coverage has a line that no test ran.

Reads `.coverage` as pytest-cov left it. Usage: `coverage_gate.py [--data FILE]`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parent.parent / "src" / "trivium"
FULL = ("scheduling", "text", "protocol", "service")
"""What must be covered in every line, without exclusions: the parts whose every decision a test can pin down."""


def files() -> list[Path]:
    found: list[Path] = []
    for name in FULL:
        path = ROOT / name
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=".coverage")
    data = coverage.Coverage(data_file=parser.parse_args().data)
    data.load()
    short = 0
    checked = files()
    for path in checked:
        _, statements, _, missing, missing_text = data.analysis2(str(path))
        if missing:
            short += 1
            percent = 100 * (1 - len(missing) / len(statements))
            print(f"{path.relative_to(ROOT)}: {percent:.0f} %, not run: {missing_text}")
    print(f"coverage of {', '.join(FULL)}: {len(checked) - short} of {len(checked)} files complete")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
