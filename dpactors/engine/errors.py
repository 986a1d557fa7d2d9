"""What can go wrong with a model or with its group, named by whose fault it is."""


class EngineError(Exception):
    """Any error of the engine room."""


class ModelRefused(EngineError):
    """The checkpoint asks for something that is not supported, or lacks something; the text names it."""


class ExchangeLost(EngineError):
    """A member of the expert-parallel group is gone or silent; the text names the operation."""


class ExchangeMissing(EngineError):
    """A step of a group was asked for and no group has been joined."""


class MeetingFailed(EngineError):
    """The ranks of an epoch did not meet: too late, or given up by cancel."""
