"""Mistakes that are told without a traceback."""


class UserError(Exception):
    """What a user can put right; the text says how. Anything else is a bug."""
