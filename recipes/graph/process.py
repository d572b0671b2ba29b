"""What the two agents read and leave to each other, in token ids, for a model that talks ChatML."""

REPLY, END = "<|im_start|>assistant\n", "<|im_end|>\n"


def pre_process(tokenizer, prompt_ids, obs, ask=""):
    """The conversation so far, then a message with what the environment said and what is asked of this agent."""

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    begun = prompt_ids[-len(ids(REPLY)) :] == ids(REPLY)  # nobody has replied yet
    so_far = prompt_ids[: -len(ids(REPLY))] if begun else prompt_ids + ids(END)
    return so_far + ids("<|im_start|>user\n") + obs + ids(ask + END + REPLY)


def post_process(tokenizer, prompt_ids, response_ids, name=""):
    """The conversation goes on with the very ids that were sampled, after the name of who said it."""
    said = response_ids[:-1] if response_ids[-1:] == [tokenizer.eos_token_id] else response_ids
    return prompt_ids + tokenizer.encode(f"\n{name}: ", add_special_tokens=False) + said
