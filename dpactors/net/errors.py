"""What can be wrong with where a link should be."""


class EndpointError(OSError):
    """An address that cannot be listened on or reached; the text names it and, where there is one, the mend."""
