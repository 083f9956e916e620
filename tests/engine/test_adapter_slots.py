"""Adapters in the engine, without a device: rows open with the slot of their adapter, and no step in flight uses a slot
whose adapter is exchanged."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from tessera.arrays import int32
from tessera.config.engine import LoraConfig
from tessera.engine.engine import Engine
from tessera.errors import RequestError
from tessera.lora import lora_args
from tessera.request import Request, make_cache_key
from tessera.sampling_params import SamplingParams
from tests.engine import fakes

LAYER = "model.layers.0.mlp.up_proj"


class Slotted(fakes.FakeExecutor):
    """loads: adapters in the order in which they came into slots. steps: of each, the adapters of its rows."""

    def __init__(self, config):
        super().__init__(config)
        self.held, self.loads, self.unfinished = {}, [], Counter()
        self.slots, self.adapters = {}, {}

    def load(self, report):
        return [dataclasses.replace(one, linear_layers={LAYER: (8, 8)}) for one in super().load(report)]

    def execute(self, step):
        for opened in step.opened:
            slot = int(opened.columns.get("lora_slot", -1))
            folder = opened.feature_args.get("lora", "")
            assert (slot < 0) == (not folder)
            if slot >= 0 and self.held.get(slot) != folder:
                assert not self.unfinished[slot], "a step in flight reads this slot"
                self.held[slot] = folder
                self.loads.append(folder)
            self.slots[opened.row], self.adapters[opened.row] = slot, folder
        for row in step.rows.tolist():
            if self.slots[row] >= 0:
                assert self.held[self.slots[row]] == self.adapters[row]
                self.unfinished[self.slots[row]] += 1
        return super().execute(step)

    def sample(self, pending, masks=None):
        return Retired(self, pending, super().sample(pending))


class Retired:
    def __init__(self, executor, step, output):
        self.executor, self.step, self.output = executor, step, output

    def done(self):
        return True

    def result(self):
        for row in self.step.rows.tolist():
            if self.executor.slots[row] >= 0:
                self.executor.unfinished[self.executor.slots[row]] -= 1
        return self.output.result()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = []
    for number in range(3):
        folder = tmp_path_factory.mktemp(f"adapter{number}")
        halves = {"A": (2, 8), "B": (8, 2)}
        tensors = {
            f"base_model.model.{LAYER}.lora_{half}.weight": np.zeros(shape, "f4") for half, shape in halves.items()
        }
        save_file(tensors, folder / "adapter_model.safetensors")
        said = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["up_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(said))
        made.append(str(folder))
    return made


@pytest.fixture
def start(request):
    def make(max_loras, depth=1, modules=(), **scheduler):
        lora = LoraConfig(enable=True, max_loras=max_loras, modules=tuple((name, name) for name in modules))
        config = dataclasses.replace(fakes.config(depth=depth, **scheduler), features=("lora",), lora=lora)
        engine = Engine(config, executor=f"{__name__}:Slotted")
        request.addfinalizer(engine.close)
        return engine

    return make


def add(engine, key, adapter, *, prompt=None, max_tokens=6, leader=-1):
    prompt = prompt or [key + 1] * 5
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    args = lora_args(adapter) if adapter else {}
    request = Request(key, str(key), int32(prompt), params, max_tokens, seed=0, leader=leader, feature_args=args)
    engine.add(msgspec.structs.replace(request, cache_key=make_cache_key("", args)))


def finish(engine):
    tokens = {}
    while engine.has_work:
        outputs = engine.step()
        if outputs is not None:
            for key, token in zip(outputs.keys.tolist(), outputs.tokens.tolist(), strict=True):
                tokens.setdefault(key, []).append(token)
    engine.check_integrity()
    return tokens


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("max_loras", [1, 2, 3])
def test_every_row_finds_its_adapter_in_its_slot(start, folders, depth, max_loras):
    engine = start(max_loras, depth, max_num_seqs=4)
    asked = [["", *folders][(3 * key) % 4 if key % 2 else key % 4] for key in range(24)]
    for key, adapter in enumerate(asked):
        add(engine, key, adapter, max_tokens=1 + key % 5)
    tokens = finish(engine)
    assert tokens == {key: fakes.answer([key + 1] * 5, 1 + key % 5) for key in range(24)}
    assert len(engine._executor.held) == max_loras
    if max_loras == 3:
        assert sorted(engine._executor.loads) == sorted(folders)


def test_adapters_that_are_loaded_at_the_start_are_not_loaded_again(start, folders):
    engine = start(None, modules=folders)
    engine._executor.held = dict(enumerate(folders))
    for key, adapter in enumerate(reversed(folders)):
        add(engine, key, adapter)
    finish(engine)
    assert engine._executor.loads == []


def test_siblings_hold_one_slot_together(start, folders):
    engine = start(1, depth=2)
    add(engine, 0, folders[0], prompt=[5] * 40)
    add(engine, 1, folders[0], prompt=[5] * 40, leader=0)
    add(engine, 2, folders[1])
    assert len(finish(engine)) == 3
    assert engine._executor.loads == folders[:2]


def test_what_the_client_may_not_ask_is_refused(start, folders, tmp_path):
    engine = start(1)
    with pytest.raises(RequestError, match="has no adapter_config.json"):
        add(engine, 0, str(tmp_path))
    assert not engine.has_work
