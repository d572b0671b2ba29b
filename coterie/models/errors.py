"""What goes wrong with models, in the reader's words."""

from coterie.errors import UserError


class ModelError(UserError):
    """A model, tokenizer or chat template that cannot be had or cannot be used; the text says what would work."""
