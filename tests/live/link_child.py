"""A process that owns one link and says every message back.

``python -m tests.live.link_child DIR ENDPOINT INCARNATION NEAR_INCARNATION JOURNAL [KEYS]``. Each number that is delivered is a
line of the journal, before anything else happens with it. HANG blocks the loop until a line comes on stdin.
"""

import asyncio
import os
import sys
from pathlib import Path

from dpactors.net.notices import Delivered, LinkNotice
from dpactors.net.zeromq import ZmqLinks
from tests.live.link_messages import FAST, HANG, one_host


async def echo(run_dir: str, endpoint: str, incarnation: int, near: int, journal: str, keys: str = "") -> None:
    file = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def hear(notice: LinkNotice) -> None:
        if type(notice) is not Delivered:
            return
        if notice.message.number == HANG:
            os.write(1, b"hangs\n")
            os.read(0, 64)
            return
        os.write(file, b"%d\n" % notice.message.number)
        links.send("near", notice.route, notice.trace, notice.message)

    links = ZmqLinks(
        "far", incarnation, "d", Path(run_dir), hear, limits=FAST, security=one_host(Path(keys)) if keys else None
    )
    links.connect("near", endpoint, near)
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(echo(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:]))
