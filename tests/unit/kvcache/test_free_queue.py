"""Free blocks come out in the order in which they went in, whoever was taken out of the middle."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from tessera.arrays import int32
from tessera.kvcache.pool import LOOKED_THROUGH, FreeQueue


@pytest.mark.parametrize("num_blocks", [2, 9, 3 * LOOKED_THROUGH, 20 * LOOKED_THROUGH])
def test_it_does_what_an_ordered_dictionary_does(num_blocks):
    chance = random.Random(num_blocks)
    queue, model, held = FreeQueue(num_blocks), OrderedDict.fromkeys(range(1, num_blocks)), []
    for _ in range(2000):
        match chance.choice(["take", "remove", "add"]):
            case "take" if model:
                count = chance.randint(1, min(len(model), chance.choice([1, 20, num_blocks])))
                taken = queue.take(count)
                assert taken.tolist() == [model.popitem(last=False)[0] for _ in range(count)]
                held += taken.tolist()
            case "remove" if model:
                chosen = chance.sample(list(model), chance.randint(1, len(model)))
                queue.remove(int32(chosen))
                held += chosen
                for block in chosen:
                    del model[block]
            case "add" if held:
                chance.shuffle(held)
                held, back = held[: len(held) // 2], held[len(held) // 2 :]
                queue.add(int32(back))
                model |= dict.fromkeys(back)
        assert list(queue) == list(model)
        assert len(queue) == len(model)


def test_a_block_behind_a_long_gap_is_found():
    queue = FreeQueue(10 * LOOKED_THROUGH)
    queue.remove(int32(range(1, 9 * LOOKED_THROUGH)))
    assert queue.take(1).tolist() == [9 * LOOKED_THROUGH]
    assert queue.take(2).tolist() == [9 * LOOKED_THROUGH + 1, 9 * LOOKED_THROUGH + 2]


def test_more_than_there_are_cannot_be_taken():
    queue = FreeQueue(4)
    with pytest.raises(AssertionError):
        queue.take(4)
