"""Tessera's platform for AWS Trainium. Experimental: it has run on an emulated device alone."""

from __future__ import annotations

from tessera.platform import Manifest, hookimpl


@hookimpl
def platforms() -> list[Manifest]:
    return [
        Manifest(
            "neuron",
            probe="tessera_neuron.probe:probe",
            platform="tessera_neuron.platform:NeuronPlatform",
        )
    ]
