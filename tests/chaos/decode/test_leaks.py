"""Many short requests, a third of them abandoned: nothing is kept of any."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
from tests.integration.decode.asking import AUTO, OFF, ON, Decode, ask, until

from burstgate.decode.v1 import decode_pb2

MIB = 1 << 20
WARM_UP = 60
MEASURED = 140
MOST_RUNS = 4


def test_memory_threads_and_files_do_not_grow_with_the_requests_served(decode: Decode, policy: Any) -> None:
    process = psutil.Process(decode.pid)
    prompt = decode_pb2.TokenPrompt(ids=[504, 505, 506, 507])

    def one(number: int) -> None:
        mode = (AUTO, ON, OFF)[number % 3]
        request = ask(tokens=prompt, mode=mode, max_tokens=3, stop=decode_pb2.StopOptions(ignore_eos=True))
        if number % 3 != number % 9 // 3:
            assert len(decode.answer(request).tokens) == 3
            return
        request.max_tokens = 1000
        call = decode.stub.Generate(request, timeout=240)
        next(call)
        call.cancel()

    def run(count: int) -> None:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(one, range(count)))
        decode.wait_rows(0, 30)

    run(WARM_UP)
    threads, files = process.num_threads(), process.num_fds()

    def grown() -> int:
        before = process.memory_info().rss
        run(MEASURED)
        return int(process.memory_info().rss - before)

    # What is used for the first time, a kernel or a buffer of another width, may come late and stays; what is kept of
    # requests grows with every run.
    assert any(grown() < 16 * MIB for _ in range(MOST_RUNS))
    until(lambda: process.num_fds() <= files + 1 and process.num_threads() <= threads + 1, 20)
