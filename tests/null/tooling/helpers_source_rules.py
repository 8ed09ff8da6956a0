"""Rules about source text that a layer checker can't state: which module may touch what."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "src" / "trivium"

BANNED_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib")
"""Reading what these write can run code."""

ENVIRONMENT_NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")


@functools.cache
def source_files() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


@functools.cache
def parse(source: str) -> ast.Module:
    """Each source is parsed once for all rules."""
    return ast.parse(source)


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(source)))


def imported_modules(source: str) -> list[tuple[int, str]]:
    """(line, module) of each import statement and of each `import_module("…")` or `__import__("…")` with a literal name."""
    found: list[tuple[int, str]] = []
    for node in nodes(source):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append((node.lineno, node.module))
        elif isinstance(node, ast.Call) and _called_name(node) in ("import_module", "__import__", "importorskip") and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.append((node.lineno, argument.value))
    return found


def _called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def banned_imports(source: str) -> list[int]:
    """Lines that import a module of `BANNED_MODULES`."""
    return [line for line, module in imported_modules(source) if module.split(".")[0] in BANNED_MODULES]


def unsafe_loads(source: str) -> list[int]:
    """Lines that call `torch.load` without `weights_only=True`: that would unpickle."""
    lines: list[int] = []
    for node in nodes(source):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "load":
            continue
        is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        is_safe = any(
            keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True for keyword in node.keywords
        )
        if is_torch and not is_safe:
            lines.append(node.lineno)
    return lines


def environment_reads(source: str) -> list[int]:
    """Lines that touch the process environment, however `os` or the names in it were imported."""
    return sorted({node.lineno for node in nodes(source) if _imports_environment(node) or _names_environment(node)})


def _imports_environment(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and node.module == "os" and any(alias.name in ENVIRONMENT_NAMES for alias in node.names)


def _names_environment(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES and isinstance(node.value, ast.Name)
