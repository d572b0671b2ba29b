"""What goes wrong with models, in the reader's words."""


class ModelError(Exception):
    """A model, tokenizer or chat template that cannot be had or cannot be used; the text says what would work."""
