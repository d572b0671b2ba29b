"""Other systems' file formats, read as they are."""
