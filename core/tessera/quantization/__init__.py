"""Weights of an unquantised checkpoint in fewer bits, as they are loaded."""

from tessera.quantization.negotiation import AsTheyAre, AtLoad, Left, Weights, weights_of
from tessera.quantization.rounding import quantised
from tessera.quantization.schemes import GROUPS, candidates

__all__ = ["GROUPS", "AsTheyAre", "AtLoad", "Left", "Weights", "candidates", "quantised", "weights_of"]
