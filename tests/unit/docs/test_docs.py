"""The documentation against the code: what a page names exists, and what the code has is on its page.

Pure: it reads the repository's files and the commands' parameters, and starts nothing.
"""

import ast
import functools
import json
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
import typer
from google.protobuf import json_format
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass
from tests.unit.docs.code import calls, constants, contract_files, enum_values, field_names, literal, service_command
from tests.unit.docs.pages import (
    PAGES,
    ROOT,
    anchors,
    commands,
    inline_code,
    json_objects,
    names_in,
    page_text,
    section,
    table_rows,
    without_blocks,
)

import burstgate_decode.__main__
import burstgate_policy.__main__
from burstgate import GrantReason
from burstgate.cli.main import app
from burstgate.policy.v1 import admin_pb2
from burstgate_decode.config import DecodeSettings
from burstgate_policy.config import PolicySettings
from burstgate_runtime.settings import ServiceSettings, variable_name

SETTINGS = (DecodeSettings, PolicySettings)
# A worked example creates it.
FILES_TO_COME = {"services/decode/burstgate_decode/drafters/prompt_lookup.py"}
# Raised by the client library for a stream that the server broke off.
CLIENT_REASONS = {"INCOMPLETE_STREAM"}
# Upper-case names of others that pages may mention: settings, a status of grpc.health, names of the loader.
FOREIGN_NAMES = re.compile(r"(?:MLXCEL|METRALE|XDG|HF)_\w+|NOT_SERVING|RTLD_GLOBAL|LD_PRELOAD")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# --- configuration


def settings_by_variable() -> dict[str, tuple[type[ServiceSettings], str]]:
    return {variable_name(cls, field): (cls, field) for cls in SETTINGS for field in cls.model_fields}


def cli_variables(command: Any = None) -> set[str]:
    command = command or typer.main.get_command(app)
    own = {parameter.envvar for parameter in command.params if parameter.envvar}
    return own.union(*(cli_variables(sub) for sub in getattr(command, "commands", {}).values()))


def test_every_variable_is_on_the_configuration_page_and_no_page_names_another() -> None:
    known = set(settings_by_variable()) | cli_variables()
    assert known - set(re.findall(r"`(BURSTGATE_[A-Z_]+)`", page_text("configuration.md"))) == set()
    for page in [*PAGES, *(ROOT / "deploy").iterdir(), *(ROOT / "services").glob("*/Containerfile")]:
        named = set(re.findall(r"\bBURSTGATE_[A-Z][A-Z_]*", page.read_text()))
        assert named - known == set(), page


@pytest.mark.parametrize("variable", sorted(settings_by_variable()))
def test_the_configuration_page_has_each_default_and_each_limit(variable: str) -> None:
    cls, field = settings_by_variable()[variable]
    rows = [row for row in table_rows(page_text("configuration.md")) if row[0] == f"`{variable}`" and len(row) == 5]
    ((_, _, default, allowed, _),) = rows
    info = cls.model_fields[field]
    if isinstance(info.default, bool):
        assert default == ("`on`" if info.default else "`off`")
    elif isinstance(info.default, int | float):
        assert default.split()[0] == f"{info.default:g}" or default.split()[0] == str(info.default)
    elif isinstance(info.default, str):
        assert default == f"`{info.default}`"
    limits = [getattr(limit, name) for limit in info.metadata for name in ("ge", "gt", "le") if hasattr(limit, name)]
    for limit in limits:
        assert re.search(rf"\b{limit:.0f}\b", allowed), (limit, allowed)


@pytest.mark.parametrize(
    "module", [burstgate_decode.__main__, burstgate_policy.__main__], ids=lambda it: it.__package__
)
def test_the_configuration_page_has_every_flag_beside_its_variable(module: Any) -> None:
    rows = table_rows(page_text("configuration.md"))
    for parameter in service_command(module).params:
        variable = re.findall(r"\[(BURSTGATE_[A-Z_]+)\]", parameter.help or "")
        if variable:
            assert [f"`{variable[0]}`", f"`{parameter.opts[0]}`"] in [row[:2] for row in rows], parameter.opts


# --- errors


@functools.cache
def reasons_in_answers() -> dict[str, str]:
    return {literal(call.args[1]): ast.unparse(call.args[0]).removeprefix("FaultKind.") for call in calls("Fault")}


@functools.cache
def reasons_at_start() -> set[str]:
    return {literal(call.args[0]) for call in calls("ModelError", "BlasError")}


def test_every_reason_is_on_the_errors_page_and_every_reason_there_is_in_the_code() -> None:
    sent, at_start = reasons_in_answers(), reasons_at_start()
    page = page_text("errors.md")
    documented = {row[0].strip("`"): row[1].strip("`") for row in table_rows(section(page, "Reasons in answers"))[1:]}
    assert documented == sent
    first_cells = [row[0] for row in table_rows(section(page, "Reasons at start"))[1:]]
    assert {reason for cell in first_cells for reason in re.findall(r"`(\w+)`", cell)} == at_start
    for reason in CLIENT_REASONS:
        assert f"`{reason}`" in page


def test_the_runbook_names_only_reasons_that_exist() -> None:
    rows = table_rows(section(page_text("runbook.md"), "Why is speculation off?"))[1:]
    named = {reason for row in rows for reason in re.findall(r"`(\w+)`", row[0])}
    assert len(named) > 5
    assert named <= {reason.value for reason in GrantReason}


# --- metrics


@functools.cache
def registered_metrics() -> dict[str, str]:
    return {
        literal(call.args[0]) + ("_total" if kind == "Counter" else ""): f"{kind.lower()} {labels_of(call)}"
        for kind in ("Counter", "Gauge", "Histogram")
        for call in calls(f"prometheus_client.{kind}", f"prometheus_client.core.{kind}MetricFamily")
    }


def test_every_metric_is_on_the_metrics_page_with_its_labels_and_no_other_is() -> None:
    documented = {}
    for row in table_rows(page_text("metrics.md")):
        name, _, labels = row[0].strip("`").partition("{")
        documented[name] = f"{row[1]} {labels.rstrip('}')}"
    del documented["metric"]
    assert documented == registered_metrics()


def labels_of(call: ast.Call) -> str:
    """The labels a metric has besides those of every call."""
    named = (keyword.value for keyword in call.keywords if keyword.arg == "labels")
    given = call.args[2] if len(call.args) > 2 else next(named, None)
    names = given.elts if isinstance(given, ast.List | ast.Tuple) else []
    return ",".join(literal(name) for name in names if not isinstance(name, ast.Starred))


# --- the API


@pytest.mark.parametrize("file", contract_files(), ids=lambda file: file.name)
def test_every_call_is_on_the_api_page(file: Any) -> None:
    for service in file.services_by_name.values():
        for method in service.methods:
            assert re.search(rf"\b{method.name}\b", page_text("api.md")), method.full_name


def test_every_call_and_command_about_verdicts_is_on_the_policy_page() -> None:
    page = page_text("policy.md")
    for method in admin_pb2.DESCRIPTOR.services_by_name["PolicyAdminService"].methods:
        # A command pages through the list and feeds a trace; the page has those.
        assert method.name in {"GetVerdict", "ReplayTrace"} or f"PolicyAdminService/{method.name}" in page
    commanded = {words[1] for words in commands(page, "burstgate") if words[0] == "policy" and len(words) > 1}
    group: Any = typer.main.get_command(app)
    assert set(group.commands["policy"].commands) - commanded - set(inline_code(page)) == set()


# --- every page


@every_page
def test_every_upper_case_name_is_one_of_ours(page: Path) -> None:
    known = set(reasons_in_answers()) | set(reasons_in_answers().values()) | reasons_at_start() | CLIENT_REASONS
    known |= enum_values() | {code.name for code in grpc.StatusCode}
    known |= set(settings_by_variable()) | cli_variables()
    known |= constants()
    for code in inline_code(page.read_text()):
        name = code.partition("=")[0]
        if re.fullmatch(r"[A-Z]+(?:_[A-Z]+)+", name) and not FOREIGN_NAMES.fullmatch(name):
            assert name in known, name


@every_page
def test_every_metric_named_exists(page: Path) -> None:
    series = {name + end for name in registered_metrics() for end in ("", "_bucket", "_count", "_sum")}
    for name in re.findall(r"\bburstgate_(?:policy|decode)_\w+", page.read_text()):
        assert name in series, name


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "operators").glob("*.md")), ids=lambda page: page.name)
def test_every_json_example_has_fields_and_values_of_the_contract(page: Path) -> None:
    fields, values = field_names(), enum_values()
    for name, value in names_in(list(json_objects(page.read_text()))):
        assert name in fields, name
        if isinstance(value, str) and re.fullmatch(r"[A-Z]+(?:_[A-Z]+)+", value):
            assert value in values, value


@every_page
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for words in commands(page.read_text(), "make"):
        assert words[0] in targets


@every_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@every_page
def test_every_file_named_exists(page: Path) -> None:
    tops = ("bench", "clients", "deploy", "docs", "protos", "services", "tests", "tools")
    files = {str(path.relative_to(ROOT)) for top in tops for path in (ROOT / top).rglob("*")}
    files |= {path.name for path in ROOT.iterdir()}
    for code in inline_code(page.read_text()):
        if re.fullmatch(r"[\w./-]+\.(py|c|md|proto|toml|yaml|service)", code):
            assert code in FILES_TO_COME or any(f"/{name}".endswith(f"/{code}") for name in files), code
        elif re.fullmatch(rf"(?:{'|'.join(tops)})/[\w./-]*", code):
            assert code.rstrip("/") in files | set(tops), code


@every_page
def test_every_burstgate_command_is_understood(page: Path) -> None:
    for words in commands(page.read_text(), "burstgate"):
        command = typer.main.get_command(app)
        while hasattr(command, "commands") and words:
            command = command.commands[words.pop(0)]
        if not hasattr(command, "commands"):  # A group alone names its commands.
            command.make_context("burstgate", words)
    for program, module in (
        ("burstgate-decode", burstgate_decode.__main__),
        ("burstgate-policy", burstgate_policy.__main__),
    ):
        for words in commands(page.read_text(), program):
            service_command(module).make_context(program, words)


@every_page
def test_every_grpcurl_request_is_one_of_the_contract(page: Path) -> None:
    for words in commands(page.read_text(), "grpcurl"):
        method = words[-1]
        if "/" not in method or method.startswith("grpc."):
            continue
        service, _, name = method.partition("/")
        request = GetMessageClass(Default().FindServiceByName(service).FindMethodByName(name).input_type)
        body = words[words.index("-d") + 1] if "-d" in words else "{}"
        json_format.ParseDict(json.loads(body), request())


@every_page
def test_every_python_example_is_python_and_uses_names_that_exist(page: Path) -> None:
    import burstgate

    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "burstgate":
                assert node.attr in burstgate.__all__


def test_the_pages_hold_examples_of_every_kind_to_check() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    found = {
        program: len(list(commands(text, program))) for program in ("make", "burstgate", "burstgate-policy", "grpcurl")
    }
    assert min(found.values()) > 1, found
