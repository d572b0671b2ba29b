"""Mistakes that are told without a traceback."""


class UserError(Exception):
    """What a user can put right; the text says how. Anything else is a bug."""


class ModelError(UserError):
    """A model, tokenizer or chat template that cannot be loaded or used; the text says what would work."""
