"""KV blocks by number: who holds how many references to which."""

from collections.abc import Iterable


class KVBlocks:
    """`count` KV blocks, numbered from 0; a block is free while nobody refers to it.

    Mutable, because a step touches a handful of thousands of blocks. Last freed is first allocated: its memory
    is the warmest.
    """

    def __init__(self, count: int) -> None:
        """`count` is in blocks, at least 1."""
        assert count >= 1, f"a cache of {count} blocks"
        self.count = count
        self._references = [0] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def available(self) -> int:
        """Free blocks."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Blocks that somebody refers to."""
        return self.count - len(self._free)

    @property
    def used(self) -> float:
        """Their share, 0 to 1."""
        return self.held / self.count

    def references(self, block: int) -> int:
        """How many hold `block`."""
        return self._references[block]

    def allocate(self, blocks: int) -> list[int]:
        """Take `blocks` free ones, with one reference each; the caller has looked at `available`."""
        assert blocks <= len(self._free), f"{blocks} blocks wanted, {len(self._free)} free"
        taken = [self._free.pop() for _ in range(blocks)]
        for block in taken:
            assert self._references[block] == 0, f"block {block} was free and referred to"
            self._references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference to each of `blocks`, which must be held already."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is free and cannot be shared"
            self._references[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Give one reference to each of `blocks` back; the last one frees it."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} freed twice"
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self) -> None:
        """Assert that each block is either free once or referred to."""
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        for block in self._free:
            assert self._references[block] == 0, f"block {block} is free and referred to"
        held = sum(1 for references in self._references if references)
        assert held + len(self._free) == self.count, f"{held} held + {len(self._free)} free of {self.count}"
