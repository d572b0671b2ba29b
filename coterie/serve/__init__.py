"""A team over HTTP, in the format of OpenAI's chat completions: `coterie serve`."""
