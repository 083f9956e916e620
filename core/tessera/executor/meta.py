"""The first worker as far as load(), over a device that is opened for its figures and otherwise left alone."""

from __future__ import annotations

from tessera.config import EngineConfig
from tessera.executor.base import Report
from tessera.platform.runner import LoadedModel
from tessera.plugins import load_platform
from tessera.runner.kv_memory import budget
from tessera.runner.meta import meta_runner


class MetaLoader:
    """A tessera.engine.startup.Loader."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.platform = load_platform(config.platform, config.platform_levels)

    def load(self, report: Report) -> LoadedModel:
        spec = self.platform.placement(self.config.parallel)[0]
        self.platform.enter_process(spec)
        device = self.platform.open(spec.devices[0])
        runner = meta_runner(self.config, self.platform, device, report)
        return runner.load(budget(self.config, device.memory()))
