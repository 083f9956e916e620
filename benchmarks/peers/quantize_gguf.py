"""Quantizes a GGUF file with llama.cpp's own function: python -m benchmarks.peers.quantize_gguf FILE TARGET FORM

FORM is Q8_0 or Q4_K_M. For a head tied to the embedding, llama.cpp chooses the type. Needs llama-cpp-python.
"""

from __future__ import annotations

import ctypes
import os
import sys

import llama_cpp

FORMS = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}


def quantize(source: str, target: str, form: str) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FORMS[form]
    params.nthread = len(os.sched_getaffinity(0))
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        raise SystemExit(f"llama.cpp could not round the model to {form}.")


if __name__ == "__main__":
    quantize(sys.argv[1], sys.argv[2], sys.argv[3])
