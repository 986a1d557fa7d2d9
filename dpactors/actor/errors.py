"""Whose fault it is: the class's author, or the actor at run time."""


class ContractError(TypeError):
    """An actor class that does not fit its own ports; raised at import."""


class ActorFailed(RuntimeError):
    """An actor raised while handling an event; carries its address, the event and its last events."""

    def __init__(self, address: str, event: str, story: tuple[str, ...]) -> None:
        lines = "\n  ".join(story)
        super().__init__(f"{address} failed on {event}. Its last events:\n  {lines}")
        self.address = address
        self.event = event
        self.story = story
