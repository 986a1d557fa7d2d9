"""Sockets, start and stop of the HTTP edge, and how heavy its process is."""

import asyncio
import subprocess
import sys

import httpx
import pytest

from dpactors.http.server import HttpEdge, ListenError, open_socket
from dpactors.serving.jobs import ServeHttp
from tests.http_peer import ANSWER, LIMIT_S, READY, EnginePeer, events, plain, serving


@pytest.mark.asyncio
async def test_two_edges_serve_one_inherited_socket_and_outlive_each_other() -> None:
    one_shot = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), timeout=LIMIT_S)
    with open_socket("127.0.0.1:0") as shared:
        port = shared.getsockname()[1]

        async def ask() -> int:
            body = {"prompt": "a"}
            return (await one_shot.post(f"http://127.0.0.1:{port}/v1/completions", json=body)).status_code

        async with serving(ANSWER, lambda: HttpEdge([shared])) as (first, url):
            async with serving(ANSWER, lambda: HttpEdge([shared])) as (second, same):
                assert url == same == f"http://127.0.0.1:{port}"

                assert set(await asyncio.gather(*[ask() for _ in range(60)])) == {200}
                assert len(first.all_submitted) + len(second.all_submitted) == 60
            assert [await ask() for _ in range(5)] == [200] * 5
        async with serving(ANSWER, lambda: HttpEdge([shared])):
            assert await ask() == 200
    await one_shot.aclose()


@pytest.mark.asyncio
async def test_a_stop_ends_what_is_in_flight_and_says_so() -> None:
    edge = HttpEdge()
    peer = EnginePeer(edge)
    edge.feed(READY)
    task = asyncio.ensure_future(edge.perform(ServeHttp("tiny-moe", "tiny-moe", "127.0.0.1:0"), peer.say))
    url = (await peer.urls)[0]
    async with plain(url) as client:
        waiting = asyncio.ensure_future(client.post("/v1/completions", json={"prompt": "a"}))
        await peer.submitted.get()
        lines: list[str] = []

        async def read() -> None:
            async with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
                async for line in response.aiter_lines():
                    lines.append(line)
                    if len(lines) == 1:
                        task.cancel()

        reading = asyncio.ensure_future(read())
        peer.write((await peer.submitted.get()).stream, ANSWER[:1])
        with pytest.raises(httpx.RemoteProtocolError):
            await reading
        response = await waiting
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert "shutting down" in lines[2]
        assert "data: [DONE]" not in lines
        assert peer.all_gone == {1, 2}
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "127.0.0.1:x", "203.0.113.1:0"])
@pytest.mark.asyncio
async def test_a_place_that_cannot_be_listened_on_is_named(listen: str) -> None:
    with pytest.raises(ListenError, match="listen"):
        await HttpEdge().perform(ServeHttp("tiny-moe", "tiny-moe", listen), print)


@pytest.mark.asyncio
async def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-model"):
        await HttpEdge().perform(ServeHttp("no-such-model", "x", "127.0.0.1:0"), print)


CONTROL_PROCESS = """
import asyncio, sys
from tests.http_peer import serving
import httpx

async def main():
    async with serving([5, 6, 7]) as (_, url), httpx.AsyncClient(base_url=url) as client:
        for _ in range(20):
            assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
        await client.get("/metrics")
        pss = next(line for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:")).split()[1]
        print(pss, *[name for name in ("torch", "transformers", "numpy") if name in sys.modules])

asyncio.run(main())
"""


def test_the_edge_is_a_light_process_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", CONTROL_PROCESS], capture_output=True, text=True, check=True)

    pss_kib, *heavy = done.stdout.splitlines()[0].split()
    assert not heavy
    assert int(pss_kib) < 120 * 1024


def test_the_edge_serves_on_uvloop_too() -> None:
    import uvloop

    async def main() -> None:
        async with serving(ANSWER) as (_, url), plain(url) as client:
            response = await client.post("/v1/completions", json={"prompt": "a", "stream": True})
            assert events(response.text)[-1] == "[DONE]"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
