"""Known fields of chats and completions that are not supported yet. A request that uses one is refused rather than
answered without it. Each field has the values, besides null, that ask for nothing, such as its default."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.server.decode import Values

GENERATION: Mapping[str, Values] = {
    "detokenize": (True,),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0,),
    "dry_penalty_last_n": (-1, 0),
    "dry_sequence_breakers": ([], ["\n", ":", '"', "*"]),
    "dynatemp_exponent": (1,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "ec_transfer_params": ({},),
    "ebnf": (),
    "grammar": (),
    "grammar_lazy": (False,),
    "guided_choice": ([],),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "logits_processors": ([],),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5,),
    "mm_processor_kwargs": ({},),
    "n_predict": (-1,),
    "n_probs": (0,),
    "options": ({},),
    "regex": (),
    "repeat_last_n": (64,),
    "repeat_penalty": (1,),
    "repetition_detection": (),
    "return_prompt_text": (False,),
    "routed_experts_prompt_start": (0,),
    "structural_tag": (),
    "tfs_z": (1,),
    "top_a": (0,),
    "typical_p": (1,),
    "watermarking": (False,),
    "xtc_probability": (0,),
    "xtc_threshold": (0.1,),
}

COMPLETIONS: Mapping[str, Values] = {
    "functions": ([],),
    "max_completion_tokens": (),
    "prompt_embeds": (),
    "thinking_token_budget": (),
    "tools": ([],),
    "top_logprobs": (0,),
}

CHAT: Mapping[str, Values] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "media_io_kwargs": ({},),
    "modalities": (["text"],),
    "suffix": ("",),
    "web_search_options": (),
}
