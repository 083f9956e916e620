"""A Neuron device of torch: the NeuronCores that the runtime groups into one logical core."""

from __future__ import annotations

from tessera.platform import MemoryFigures, ModuleDevice


class NeuronDevice(ModuleDevice):
    """torch.neuron knows the memory of a device and what its own tensors take, but not what is free. Nothing is asked
    of it before the workers have met, because that starts the runtime, which joins a group only at its start."""

    eager = False

    def memory(self) -> MemoryFigures:
        total = int(self.module.get_device_properties(self.target).total_memory)
        return MemoryFigures(total=total, free=total - int(self.module.memory_reserved(self.target)))
