"""The engine half of adapters: which adapter is in which slot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tessera.config import EngineConfig, ModelConfig
from tessera.config.engine import LoraConfig
from tessera.errors import ConfigError, ModelError, RequestError
from tessera.features.lora import InSlot, LoraInEngine, Slots
from tessera.lora import lora_args

ADAPTERS = ["/a", "/b", "/c", "/d"]


def of(adapter):
    return SimpleNamespace(feature_args=lora_args(adapter) if adapter else {})


def test_an_adapter_keeps_its_slot_until_another_needs_it():
    slots = Slots(2)
    slots.take(of("/a"), 1)
    slots.take(of("/b"), 1)
    assert (slots.slot("/a"), slots.slot("/b")) == (0, 1)
    assert slots.fits(of("/a"), 5) == 5
    assert isinstance(slots.fits(of("/c"), 5), str)
    slots.take(of("/a"), 1)
    slots.release(of("/a"))
    assert isinstance(slots.fits(of("/c"), 5), str), "the other request with /a still runs"
    slots.release(of("/a"))
    slots.take(of("/a"), 1)
    assert slots.slot("/a") == 0, "nobody took it in between"
    slots.release(of("/b"))
    slots.take(of("/c"), 1)
    assert slots.slot("/c") == 1
    assert InSlot(slots, "/c").columns() == {"lora_slot": 1}


def test_the_one_unused_for_the_longest_time_goes_first():
    slots = Slots(3)
    for adapter in ("/a", "/b", "/c", "/a"):
        slots.take(of(adapter), 1)
        slots.release(of(adapter))
    slots.take(of("/d"), 1)
    assert slots.slot("/d") == 1


def test_adapters_that_are_loaded_at_the_start_have_the_first_slots():
    slots = Slots(3, ADAPTERS[:2])
    slots.take(of("/c"), 1)
    assert [slots.slot(adapter) for adapter in ADAPTERS[:3]] == [0, 1, 2]
    few = Slots(2, ADAPTERS)
    few.take(of("/d"), 1)
    assert few.slot("/d") == 0


def test_requests_without_an_adapter_take_none():
    slots = Slots(1)
    slots.take(of("/a"), 1)
    assert slots.fits(of(""), 7) == 7
    slots.take(of(""), 7)
    slots.release(of(""))
    assert slots.slot("/a") == 0


def test_as_many_slots_as_modules_unless_the_flag_says_otherwise():
    modules = (("a", "/a"), ("same", "/a"), ("b", "/b"))
    assert LoraConfig().slots == 1
    assert LoraConfig(modules=modules).slots == 2
    assert LoraConfig(modules=modules, max_loras=1).slots == 1


def config(**lora):
    return EngineConfig(ModelConfig("", "tiny", {}, 10, 100), "platform", lora=LoraConfig(enable=True, **lora))


def test_broken_adapters_are_refused_at_the_start_and_in_requests(tmp_path):
    with pytest.raises(ConfigError, match="takes no option"):
        LoraInEngine(config(), "x")
    with pytest.raises(ModelError, match="has no adapter_config.json"):
        LoraInEngine(config(modules=(("a", str(tmp_path)),)), "")
    feature = LoraInEngine(config(), "")
    with pytest.raises(RequestError, match="has no adapter_config.json"):
        feature.check(lora_args(str(tmp_path)))
    assert feature.begin(of("")) is None
