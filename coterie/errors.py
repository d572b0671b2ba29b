"""Errors that the command line prints without a traceback."""


class UserError(Exception):
    """An error that the user can fix; its text says how. Any other exception is a bug."""


class ModelError(UserError):
    """A model, tokenizer or chat template that cannot be loaded or used; the text says what would work."""
