"""A process that owns one link and says every message back: ``python -m tests.live.link_child DIR ENDPOINT N``."""

import asyncio
import sys
from pathlib import Path

from dpactors.net.notices import Delivered, LinkNotice
from dpactors.net.zeromq import ZmqLinks
from tests.live.link_messages import FAST


async def echo(run_dir: str, endpoint: str, incarnation: int) -> None:
    def hear(notice: LinkNotice) -> None:
        if type(notice) is Delivered:
            links.send("parent", notice.route, notice.trace, notice.message)

    links = ZmqLinks("child", incarnation, "d", Path(run_dir), hear, limits=FAST)
    links.connect("parent", endpoint, 1)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(echo(sys.argv[1], sys.argv[2], int(sys.argv[3])))
