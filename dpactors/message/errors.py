"""What can be wrong with bytes that claim to be a message."""


class MessageError(ValueError):
    """Bytes or fields that no correct peer would have sent, or a class that cannot travel."""


class DuplicateTag(MessageError):
    """Two classes claim one lasting tag; raised at import."""


class UnknownTag(MessageError):
    """A tag that this process knows no class for."""


class MalformedMessage(MessageError):
    """Right tag, wrong arity, type or range; the text names the field."""


class FrameTooLarge(MessageError):
    """A frame or field above its named limit; nothing of it was decoded."""
