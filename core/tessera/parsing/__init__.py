"""How models write their answers: reasoning, text and the calls of tools; and what a grammar demands to force calls."""
