"""What the code has that a page can name: the contract, the services' calls and constants, their commands.

Sources are read as syntax, because importing some of them would import mlx.
"""

import ast
import functools
import re
from collections.abc import Iterator
from typing import Any

import typer
from tests.unit.docs.pages import ROOT

from burstgate.decode.v1 import decode_pb2
from burstgate.policy.v1 import admin_pb2, policy_pb2

SOURCES = sorted((ROOT / "services").rglob("*.py"))
CONTRACT = (decode_pb2, policy_pb2, admin_pb2)


def contract_files() -> list[Any]:
    return [module.DESCRIPTOR for module in CONTRACT]


def field_names() -> set[str]:
    waiting = [message for file in contract_files() for message in file.message_types_by_name.values()]
    names = set()
    while waiting:
        message = waiting.pop()
        names |= set(message.fields_by_name)
        waiting += message.nested_types
    return names


def enum_values() -> set[str]:
    """Each by its whole name and without its enum's prefix."""
    found = set()
    for file in contract_files():
        for enum in file.enum_types_by_name.values():
            prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
            found |= {name for value in enum.values for name in (value.name, value.name.removeprefix(prefix))}
    return found


@functools.cache
def nodes() -> list[ast.AST]:
    """The services' sources, node by node."""
    return [node for path in SOURCES for node in ast.walk(ast.parse(path.read_text()))]


def calls(*names: str) -> Iterator[ast.Call]:
    for node in nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
            yield node


def literal(node: ast.expr) -> Any:
    assert isinstance(node, ast.Constant), f"only a literal can be documented, not {ast.unparse(node)}"
    return node.value


@functools.cache
def constants() -> set[str]:
    """Every upper-case name that the services assign to."""
    names = (node for node in nodes() if isinstance(node, ast.Name))
    return {name.id for name in names if name.id.isupper() and isinstance(name.ctx, ast.Store)}


def service_command(module: Any) -> Any:
    one = typer.Typer(add_completion=False)
    one.command()(module._serve)
    return typer.main.get_command(one)
