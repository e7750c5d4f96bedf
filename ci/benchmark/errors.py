"""The one error of the bench."""


class BenchError(Exception):
    """Something is missing, or a queue did not do what it was measured for; the message says what."""
