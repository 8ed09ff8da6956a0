"""The written word against the code: generated pages are current, links lead somewhere, snippets parse."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from helpers_source_rules import ROOT, source_files

from trivium import env
from trivium.cli.main import COMMANDS
from trivium.config import ServerConfig
from trivium.config_io import settings_of
from trivium.errors import ERRORS_BY_SLUG, ModelLoadError
from trivium.frontends.openai.schema import ChatBody, CompletionBody
from trivium.metrics.catalogue import CATALOGUE

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "AGENTS.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_current() -> None:
    generator = _script("generate_docs")
    stale = [name for name, page in generator.PAGES.items() if (generator.DOCS / name).read_text() != page()]
    assert stale == [], "run make docs"


def test_every_metric_says_what_it_measures() -> None:
    assert [metric.name for metric in CATALOGUE if not metric.doc.endswith(".")] == []


def test_the_configuration_page_has_every_setting() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert [name for name, setting in settings_of(ServerConfig).items() if f"`{setting.flag}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_snippets_parse(page: Path) -> None:
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        ast.parse(snippet)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_flags_in_the_text_exist(page: Path) -> None:
    text = page.read_text()
    commands = {name for name in re.findall(r"`trivium ([a-z]+)", text) if name not in COMMANDS}
    assert commands == set()
    known = {setting.flag for setting in settings_of(ServerConfig).values()}
    lines = re.findall(r"^\s*(?:\$ )?trivium serve .*$", text, flags=re.MULTILINE)
    flags = {flag for line in lines for flag in re.findall(r"--[a-z][a-z-]+", line.split("#")[0])}
    assert flags - known - {"--config", "--help"} == set()


@pytest.mark.parametrize("body", [CompletionBody, ChatBody])
def test_the_api_page_names_every_field_of_a_request(body: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs" / "openai-api.md").read_text()
    assert [name for name in body.__struct_fields__ if f"`{name}`" not in text] == []


def test_the_api_page_names_every_error_that_a_request_can_meet() -> None:
    text = (ROOT / "docs" / "openai-api.md").read_text()
    never_sent = {"cancelled", "config_error"} | {slug for slug, error in ERRORS_BY_SLUG.items() if issubclass(error, ModelLoadError)}
    missing = [slug for slug, error in ERRORS_BY_SLUG.items() if slug not in never_sent and f"`{slug}`" not in text]
    assert missing == []
    of_http = {code: int(status) for path in source_files() for status, code in re.findall(r'HttpError\((\d+), "(\w+)"', path.read_text())}
    of_http["not_found"] = 404
    assert [code for code in of_http if f"`{code}`" not in text] == []
    statuses = of_http | {slug: error.http_status for slug, error in ERRORS_BY_SLUG.items()}
    for status, codes in re.findall(r"^\| (\d{3}) \| ([^|]+) \|", text, flags=re.MULTILINE):
        assert {statuses[code] for code in re.findall(r"`(\w+)`", codes)} == {int(status)}


def test_the_variables_that_are_read_are_in_the_table() -> None:
    read = {name for path in source_files() for name in re.findall(r"\benv\.(?:get|flag)\(\s*\"([A-Z_0-9]+)\"", path.read_text())}
    assert read - {variable.name for variable in env.VARIABLES} == set()
