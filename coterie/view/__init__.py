"""`coterie view` and `coterie report`: pages over run folders. They read JSON and YAML only: no model, no tokenizer, no
pickle, no torch."""
