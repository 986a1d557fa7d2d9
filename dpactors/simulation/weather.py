"""How bad the simulated network is."""

from attrs import frozen


@frozen
class Weather:
    """Delays in seconds, losses as probabilities.

    `lose` breaks the law of reliable links on purpose: it shows that a protocol does not hang on one message.
    """

    delay_s: tuple[float, float] = (0.0001, 0.005)
    """Each message's delay is drawn from here; the order between two actors is kept."""
    lose: float = 0.0
    lose_kinds: tuple[str, ...] = ()
    """Class names of the messages that may be lost; empty with `lose` set means every kind."""
