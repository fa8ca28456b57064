"""Faults as statuses: nothing a caller sends can make the status too large to arrive."""

import pytest
from google.rpc import error_details_pb2

from burstgate_runtime.faults import Fault, FaultKind, Violation, invalid
from burstgate_runtime.status import CODES, to_status


def test_every_kind_of_fault_has_the_status_code_of_its_name() -> None:
    assert {kind.name: CODES[kind].name for kind in FaultKind} == {kind.name: kind.name for kind in FaultKind}


def test_the_message_of_an_invalid_request_names_each_field_and_its_limit() -> None:
    fault = invalid(Violation("key.target", "must not be empty"), Violation("width", "must be 1 or more, got 0"))
    assert fault.message == "key.target must not be empty; width must be 1 or more, got 0"


@pytest.mark.parametrize("text", ["x", "\n", "ж", "\U0001f600", "\ud800"])
def test_the_largest_status_fits_into_response_headers(text: str) -> None:
    long = text * 10_000
    fault = Fault(
        FaultKind.INVALID_ARGUMENT,
        "INVALID_FIELD",
        long,
        violations=[Violation(long, long)] * 100,
        metadata={f"{n}{long}": long for n in range(100)},
    )
    status = to_status(fault)
    # As it travels: the message percent-encoded (up to 3 bytes for each UTF-8 byte), the rest in base64.
    worst = 3 * len(status.message.encode()) + len(status.SerializeToString()) * 4 // 3
    assert worst < 8 * 1024
    bad_request = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad_request)
    assert len(bad_request.field_violations) == 8
