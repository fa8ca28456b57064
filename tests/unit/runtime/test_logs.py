"""Log lines: one stream, one format, for our lines and for those of libraries."""

import io
import json
import logging

import pytest
import structlog

from burstgate_runtime.logs import configure_logs


def test_every_line_is_one_json_object_whoever_wrote_it() -> None:
    written = io.StringIO()
    configure_logs("info", "json", written)
    with structlog.contextvars.bound_contextvars(request_id="r1"):
        structlog.get_logger().info("ours", n=1)
        logging.getLogger("grpc").warning("theirs %s", 2)
    ours, theirs = (json.loads(line) for line in written.getvalue().splitlines())
    assert (ours["event"], ours["n"], ours["level"], ours["request_id"]) == ("ours", 1, "info", "r1")
    assert (theirs["event"], theirs["logger"], theirs["request_id"]) == ("theirs 2", "grpc", "r1")


def test_the_console_format_is_for_people_and_has_no_colour_codes_in_a_file() -> None:
    written = io.StringIO()
    configure_logs("info", "console", written)
    structlog.get_logger().info("ours", n=1)
    assert "ours" in written.getvalue()
    assert "n=1" in written.getvalue()
    assert "\x1b" not in written.getvalue()


@pytest.mark.parametrize(("level", "lines"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_lines_below_the_level_are_not_written(level: str, lines: int) -> None:
    written = io.StringIO()
    configure_logs(level, "json", written)
    log = structlog.get_logger()
    for say in (log.debug, log.info, log.warning, log.error):
        say("x")
    assert len(written.getvalue().splitlines()) == lines


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_a_traceback_never_shows_local_variables(fmt: str) -> None:
    written = io.StringIO()
    configure_logs("info", fmt, written)

    def fail(prompt: str) -> None:
        raise ValueError("too long")

    try:
        fail("my secret" + " diary")
    except ValueError:
        structlog.get_logger().exception("ours")
        logging.getLogger("grpc").exception("theirs")
    assert written.getvalue().count("too long") >= 2
    assert "my secret diary" not in written.getvalue()
