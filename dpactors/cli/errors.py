"""Exit codes, and the one error by which a verb ends early."""

FAILED = 1
REFUSED = 2
INTERRUPTED = 130


class Refusal(Exception):
    """A verb cannot go on; its text is for the operator, its code for their script."""

    def __init__(self, text: str, code: int = REFUSED) -> None:
        super().__init__(text)
        self.code = code
