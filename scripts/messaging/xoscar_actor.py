"""xoscar: an actor in a sub-process of its pool. Imports nothing of ours: it may run in an environment of its own."""

import asyncio
import statistics
import time
from array import array
from dataclasses import dataclass

import xoscar as mo

ASKS, PIPELINED, OUTSTANDING, STREAM = 1000, 5000, 64, 10_000


@dataclass(slots=True)
class Request:
    request_id: str
    rank: int
    tokens: array
    wave: int


SMALL = Request("cmpl-0123456789abcde", 3, array("i", range(8)), 0)


class Echo(mo.Actor):
    def __init__(self) -> None:
        self.count = 0
        self.cpu_s = 0.0

    @mo.extensible
    def echo(self, one: Request) -> Request:
        return one

    def take(self, one: Request) -> None:
        if self.count == 0:
            self.cpu_s = time.process_time()
        self.count += 1

    def told(self) -> tuple[int, float]:
        return self.count, (time.process_time() - self.cpu_s) / max(self.count, 1) * 1e6


async def _run() -> dict[str, float]:
    pool = await mo.create_actor_pool("127.0.0.1", n_process=1)
    async with pool:
        strategy = mo.allocate_strategy.ProcessIndex(1)
        ref = await mo.create_actor(Echo, address=pool.external_address, allocate_strategy=strategy)
        took_s: list[float] = []
        for _ in range(ASKS):
            began_s = time.perf_counter()
            await ref.echo(SMALL)
            took_s.append(time.perf_counter() - began_s)
        result = {"ask_us": statistics.median(took_s[ASKS // 10 :]) * 1e6}
        left = [PIPELINED]

        async def asker() -> None:
            while left[0] > 0:
                left[0] -= 1
                await ref.echo(SMALL)

        began_s = time.perf_counter()
        await asyncio.gather(*[asker() for _ in range(OUTSTANDING)])
        result["pipelined_per_s"] = PIPELINED / (time.perf_counter() - began_s)
        began_s = time.perf_counter()
        for _ in range(PIPELINED // OUTSTANDING):
            await ref.echo.batch(*[ref.echo.delay(SMALL) for _ in range(OUTSTANDING)])
        result["batched_per_s"] = PIPELINED // OUTSTANDING * OUTSTANDING / (time.perf_counter() - began_s)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(STREAM):
            await ref.take.tell(SMALL)
        sent_cpu_s = time.process_time() - cpu_s
        while (told := await ref.told())[0] < STREAM:
            await asyncio.sleep(0.005)
        result["stream_per_s"] = STREAM / (time.perf_counter() - began_s)
        return result | {"send_cpu_us": sent_cpu_s / STREAM * 1e6, "receive_cpu_us": told[1]}


def client(_: str) -> dict[str, float]:
    return asyncio.run(_run())
