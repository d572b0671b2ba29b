"""siiRL hooks that build the agents' prompts as token ids, for a model with a ChatML template."""

REPLY, END = "<|im_start|>assistant\n", "<|im_end|>\n"


def pre_process(tokenizer, prompt_ids, obs, ask=""):
    """The conversation so far, which has the environment's verdict, then a message with this agent's instruction."""

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    first = prompt_ids[-len(ids(REPLY)) :] == ids(REPLY)  # no agent has replied yet
    so_far = prompt_ids[: -len(ids(REPLY))] if first else prompt_ids + ids(END)
    return so_far + ids(f"<|im_start|>user\n{ask}{END}{REPLY}")


def post_process(tokenizer, prompt_ids, response_ids, name=""):
    """Append the sampled ids to the conversation, after the agent's name."""
    reply = response_ids[:-1] if response_ids[-1:] == [tokenizer.eos_token_id] else response_ids
    return prompt_ids + tokenizer.encode(f"\n{name}: ", add_special_tokens=False) + reply
