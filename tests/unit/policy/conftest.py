"""The pairing and the steps that the stories of the policy share."""

from collections.abc import Callable

import pytest

from burstgate_policy.core.types import CostCell, LaneCapabilities, Mode, PolicyKey, StepRecord

MakeStep = Callable[..., StepRecord]


@pytest.fixture(scope="session")
def key() -> PolicyKey:
    return PolicyKey(
        target="SmolLM2-135M-Instruct",
        drafter="smollm2-135m-mtp",
        hardware="x86_64-2c",
        draft_width=8,
        target_fingerprint="a1",
        drafter_fingerprint="b2",
        dtype="float32",
        backend="cpu",
        blas="openblas-0.3.34",
        mlx_version="0.32.4",
    )


@pytest.fixture(scope="session")
def capabilities() -> LaneCapabilities:
    return LaneCapabilities(batchable=True, max_width=16, drafter_kind="mtp_head", apple_gpu_generation=0)


@pytest.fixture(scope="session")
def costs() -> list[CostCell]:
    """What OpenBLAS on two cores measures: many rows cost little more than one."""
    verify_ms = {1: 68.0, 2: 74.0, 4: 78.0, 6: 85.0, 8: 95.0}
    return [CostCell(1, k, 64, ms, 3.5 * (k - 1)) for k, ms in verify_ms.items()]


@pytest.fixture(scope="session")
def make_step() -> MakeStep:
    """A step of one of the modes, in which `accepted` drafts of every row were kept."""

    def make(
        mode: Mode,
        *,
        draft_width: int = 4,
        accepted: int = 2,
        width: int = 1,
        depth_tokens: int = 100,
        draft_ms: float = 10.0,
        verify_ms: float = 78.0,
        overhead_ms: float = 2.0,
        plain_ms: float = 68.0,
        excluded: bool = False,
    ) -> StepRecord:
        if not mode.speculates:
            return StepRecord(mode, 1, width, depth_tokens, width, 0, (), 0.0, plain_ms, 0.0, plain_ms, excluded)
        return StepRecord(
            mode=mode,
            draft_width=draft_width,
            width=width,
            depth_tokens=depth_tokens,
            emitted=width * (accepted + 1),
            proposed=width * (draft_width - 1),
            accepted_by_position=tuple(width if i < accepted else 0 for i in range(draft_width - 1)),
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            overhead_ms=overhead_ms,
            wall_ms=draft_ms + verify_ms + overhead_ms,
            excluded=excluded,
        )

    return make
