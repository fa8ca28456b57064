"""The client library against the contract: nothing of it is forgotten."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from typing import Any

import pytest

import burstgate
from burstgate import results, serving, verdicts
from burstgate.decode.v1 import decode_pb2
from burstgate.policy.v1 import admin_pb2, policy_pb2

# What a decode instance says to its policy service, and nobody else.
LANE_RPCS = {"OpenLane", "DecideBurst", "ReportBurst", "StreamBursts"}


def test_every_rpc_but_those_of_lanes_has_a_method_of_the_sync_clients(server: Any, rpc_methods: Any) -> None:
    server.verdicts.append(admin_pb2.VerdictView(snapshot=policy_pb2.PolicySnapshot(key_hash="ab")))
    with burstgate.Client(server.address) as client, burstgate.PolicyClient(server.address) as policy:
        client.generate("hi").result()
        client.count_tokens("hi")
        client.model()
        client.server_info()
        list(policy.verdicts())
        policy.verdict("ab")
        with contextlib.closing(policy.watch()) as changes:
            next(changes)
        policy.pin("ab", speculate=True, reason="why", author="who")
        policy.unpin("ab")
        policy.reset("ab")
        policy.import_hints(policy.export_hints())
        policy.explain("lane")
        policy.replay({})
    assert {asked.method for asked in server.asked} == _every_rpc(rpc_methods) - LANE_RPCS


async def test_every_rpc_but_those_of_lanes_has_a_method_of_the_aio_clients(server: Any, rpc_methods: Any) -> None:
    server.verdicts.append(admin_pb2.VerdictView(snapshot=policy_pb2.PolicySnapshot(key_hash="ab")))
    async with burstgate.AsyncClient(server.address) as client:
        await client.generate("hi").result()
        await client.count_tokens("hi")
        await client.model()
        await client.server_info()
    async with burstgate.AsyncPolicyClient(server.address) as policy:
        assert [verdict.key_hash async for verdict in policy.verdicts()] == ["ab"]
        await policy.verdict("ab")
        async with contextlib.aclosing(policy.watch()) as changes:
            await anext(changes)
        await policy.pin("ab", speculate=True, reason="why", author="who")
        await policy.unpin("ab")
        await policy.reset("ab")
        await policy.import_hints(await policy.export_hints())
        await policy.explain("lane")
        await policy.replay({})
    assert {asked.method for asked in server.asked} == _every_rpc(rpc_methods) - LANE_RPCS


@pytest.mark.parametrize(
    ("sync", "aio"),
    [
        (burstgate.Client, burstgate.AsyncClient),
        (burstgate.PolicyClient, burstgate.AsyncPolicyClient),
        (burstgate.GenerationStream, burstgate.AsyncGenerationStream),
    ],
)
def test_the_sync_and_aio_classes_offer_the_same_methods_and_options(sync: type, aio: type) -> None:
    assert _parameters(sync) == _parameters(aio)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (burstgate.Delta, decode_pb2.GenerateDelta),
        (burstgate.Completion, decode_pb2.GenerateCompletion),
        (results.TokenLogprobs, decode_pb2.TokenLogprobs),
        (results.TokenLogprob, decode_pb2.TokenLogprob),
        (results.Usage, decode_pb2.Usage),
        (results.Timings, decode_pb2.Timings),
        (results.SpeculationStats, decode_pb2.SpeculationStats),
        (results.BurstCount, decode_pb2.BurstCount),
        (results.DraftWidthCount, decode_pb2.DraftWidthCount),
        (burstgate.TokenCount, decode_pb2.CountTokensResponse),
        (serving.Model, decode_pb2.GetModelResponse),
        (serving.Target, decode_pb2.ModelInfo),
        (serving.Drafter, decode_pb2.DrafterInfo),
        (serving.Exactness, decode_pb2.ExactnessReport),
        (serving.CostCell, policy_pb2.CostCell),
        (serving.ServerInfo, decode_pb2.GetServerInfoResponse),
        (serving.PolicyLink, decode_pb2.PolicyLink),
        (verdicts.PolicyKey, policy_pb2.PolicyKey),
        (verdicts.Grant, policy_pb2.BurstGrant),
        (verdicts.Lane, admin_pb2.LaneView),
        (verdicts.Regret, admin_pb2.Regret),
        (verdicts.Evidence, policy_pb2.Evidence),
        (verdicts.Pin, policy_pb2.Pin),
        (verdicts.VerdictFilter, admin_pb2.VerdictFilter),
        (verdicts.ImportedHint, admin_pb2.ImportedHint),
        (verdicts.Situation, policy_pb2.Situation),
        (verdicts.RuleAnswer, admin_pb2.RuleAnswer),
        (verdicts.Explanation, admin_pb2.ExplainGrantResponse),
        (verdicts.ReplayedStep, admin_pb2.ReplayedStep),
        (burstgate.Sampling, decode_pb2.SamplingOptions),
        (burstgate.Stop, decode_pb2.StopOptions),
        (burstgate.Message, decode_pb2.ChatMessage),
    ],
)
def test_every_field_of_a_message_is_a_field_of_its_dataclass(kind: Any, message: Any) -> None:
    assert {field.name for field in dataclasses.fields(kind)} == set(message.DESCRIPTOR.fields_by_name)


def test_a_verdict_holds_every_field_of_its_snapshot_and_its_view() -> None:
    snapshot = set(policy_pb2.PolicySnapshot.DESCRIPTOR.fields_by_name)
    view = set(admin_pb2.VerdictView.DESCRIPTOR.fields_by_name) - {"snapshot"}
    assert {field.name for field in dataclasses.fields(burstgate.Verdict)} == snapshot | view


@pytest.mark.parametrize(
    ("members", "wrapper", "prefix"),
    [
        (burstgate.BurstMode, policy_pb2.BurstMode, "BURST_MODE_"),
        (burstgate.GrantReason, policy_pb2.GrantReason, "GRANT_REASON_"),
        (burstgate.FinishReason, decode_pb2.FinishReason, "FINISH_REASON_"),
        (verdicts.PolicyState, policy_pb2.PolicyState, "POLICY_STATE_"),
        (verdicts.Answer, policy_pb2.Verdict, "VERDICT_"),
    ],
)
def test_every_enum_value_has_a_member(members: Any, wrapper: Any, prefix: str) -> None:
    assert [member.value for member in members] == [name.removeprefix(prefix) for name, _ in wrapper.items()]


def test_everything_exported_exists_and_is_sorted_once() -> None:
    assert len(set(burstgate.__all__)) == len(burstgate.__all__)
    assert [name for name in burstgate.__all__ if not hasattr(burstgate, name)] == []


def _every_rpc(rpc_methods: Any) -> set[str]:
    services = ("decode.v1.DecodeService", "policy.v1.PolicyService", "policy.v1.PolicyAdminService")
    return set().union(*(rpc_methods(f"burstgate.{service}") for service in services))


def _parameters(kind: type) -> dict[str, list[str]]:
    return {
        name: [str(parameter).split(":")[0] for parameter in inspect.signature(member).parameters.values()]
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }
