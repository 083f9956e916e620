"""A checkpoint's `response_template`: its own description, in tokenizer_config.json, of how it writes answers.

The format is transformers' (https://huggingface.co/docs/transformers/main/chat_response_parsing), whose parser defines
what a text means. This one reads the same as it arrives, in bounded time, and never fails: transformers' needs torch's
stack in the front end, takes time that grows with the square of some texts, and raises for calls that are malformed.
"""
