"""LoRA adapters, the engine's half: which of them are in the workers' slots. The workers' half is runner/lora.py.

An adapter is known by its folder. A request takes a slot when it starts and gives it back when it leaves its row, so
no step in flight uses a slot whose adapter is exchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tessera.config.lora import read_adapter
from tessera.errors import ConfigError, ModelError, RequestError, printable
from tessera.lora import NAME
from tessera.platform.feature import EngineFeature, Feature, FeatureState
from tessera.platform.launch import RequestView, Resource

if TYPE_CHECKING:
    from tessera.config import EngineConfig
    from tessera.platform.device import Reason
    from tessera.platform.loaded_model import LoadedModel
    from tessera.request import Request

FEATURE = Feature(engine="tessera.features.lora:LoraInEngine", worker="tessera.runner.lora:LoraInWorker")
SLOT = "lora_slot"
"""The column: the slot of a row's adapter, -1 for none."""


class LoraInEngine(EngineFeature):
    """Checks adapters and gives them slots. Raises ModelError for one of --lora-modules that cannot be served."""

    def __init__(self, config: EngineConfig, option: str) -> None:
        if option:
            raise ConfigError("The feature lora takes no option; use --lora-modules, --max-loras and --max-lora-rank.")
        self._max_rank = config.lora.max_rank
        folders = dict.fromkeys(folder for _, folder in config.lora.modules)
        self._slots = Slots(config.lora.slots, list(folders))
        self._checked = set[str]()
        self._layers: Mapping[str, tuple[int, int]] = {}
        for folder in folders:
            read_adapter(folder, self._max_rank)

    def started(self, loaded: LoadedModel) -> None:
        self._layers = loaded.linear_layers

    def resources(self) -> Sequence[Resource]:
        return (self._slots,)

    def begin(self, request: Request) -> FeatureState | None:
        return None if (adapter := request.feature_args.get(NAME)) is None else InSlot(self._slots, adapter)

    def check(self, args: Mapping[str, str]) -> None:
        adapter = args.get(NAME)
        if adapter is None or adapter in self._checked:
            return
        try:
            reason = read_adapter(adapter, self._max_rank).mismatch(self._layers)
        except ModelError as error:
            raise RequestError(error.message, param="lora_request") from error
        if reason is not None:
            raise RequestError(f"The adapter '{printable(adapter)}' cannot be used: {reason}.", param="lora_request")
        self._checked.add(adapter)


class InSlot(FeatureState):
    """A request's adapter."""

    def __init__(self, slots: Slots, adapter: str) -> None:
        self._slots, self._adapter = slots, adapter

    def columns(self) -> Mapping[str, float]:
        return {SLOT: self._slots.slot(self._adapter)}


class Slots(Resource):
    """The slots of the workers. loaded: adapters that are loaded at the start, the first ones into the first slots. An
    adapter that nobody uses stays until its slot is needed; the one unused for the longest time goes first."""

    name = "adapter slots (--max-loras)"

    def __init__(self, number: int, loaded: Sequence[str] = ()) -> None:
        # In the order of last use.
        self._slot_by_adapter = {adapter: slot for slot, adapter in enumerate(loaded[:number])}
        self._free = list(range(len(self._slot_by_adapter), number))
        self._users = Counter[str]()

    def slot(self, adapter: str) -> int:
        """The slot of an adapter that a running request uses."""
        return self._slot_by_adapter[adapter]

    def fits(self, request: RequestView, num_tokens: int) -> int | Reason:
        adapter = request.feature_args.get(NAME)
        if adapter is None or adapter in self._slot_by_adapter or self._free or self._idle() is not None:
            return num_tokens
        return "all of them are in use"

    def take(self, request: RequestView, num_tokens: int) -> None:
        adapter = request.feature_args.get(NAME)
        if adapter is None:
            return
        slot = self._slot_by_adapter.pop(adapter, None)
        if slot is None:
            slot = self._free.pop(0) if self._free else self._given_up()
        self._slot_by_adapter[adapter] = slot
        self._users[adapter] += 1

    def release(self, request: RequestView) -> None:
        if (adapter := request.feature_args.get(NAME)) is not None:
            self._users[adapter] -= 1

    def _idle(self) -> str | None:
        return next((adapter for adapter in self._slot_by_adapter if not self._users[adapter]), None)

    def _given_up(self) -> int:
        adapter = self._idle()
        assert adapter is not None, "fits() said that there is a slot"
        del self._users[adapter]
        return self._slot_by_adapter.pop(adapter)
