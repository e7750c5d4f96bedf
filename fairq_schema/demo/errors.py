"""The one error of the demo: something it needs is missing; the message says what."""


class DemoError(Exception):
    """The demo cannot run, and the message says why."""
