"""A row is drawn for as its own request asks, whoever had it before."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tessera.arrays import int32
from tessera.ops import Sampled, SampleSpec
from tessera.runner.device_buffers import DeviceBuffers
from tessera.runner.host_sampler import reference_call
from tessera.runner.input_batch import SamplingColumns
from tessera.runner.logits_editor import LogitsEditor
from tessera.runner.sampler import Sampler
from tessera.sampling_params import SamplingParams
from tessera.step import RowOpened, TokenMasks
from tessera.testing.reference import host_device

VOCAB = 10
ROWS = int32([1, 0])
GREEDY = SamplingParams(temperature=0.0)


class Drawing:
    """A sampler over ops that draw nothing and keep what they were asked. asked: op, its spec, its SamplingRows.
    logits: what the model gives; seen: the logits of each op that takes them, by name; taken: the rows copied."""

    def __init__(self, batch_invariant=False):
        self.columns = SamplingColumns(4, eos=(), vocab=VOCAB)
        self.asked, self.seen = [], {}
        self.logits = torch.zeros(3, VOCAB, dtype=torch.bfloat16)
        head = SimpleNamespace(weight=None, sampling_spec=lambda spec: spec)
        model = SimpleNamespace(head=head, facts=SimpleNamespace(vocab_size=VOCAB), logits=lambda hidden: self.logits)
        tokens, buffers = torch.zeros(4, 8, dtype=torch.int32), DeviceBuffers(host_device())
        ops = SimpleNamespace(bind=self.bind, batch_invariant=batch_invariant)
        editor = LogitsEditor(self.columns, tokens, self.bind, torch.from_numpy)
        self.sampler = Sampler(model, ops, self.columns, buffers, (), editor)

    def bind(self, name, spec):
        def call(*args):
            self.seen[name] = args[0]
            if name == "take_logits":
                self.taken = args[1].tolist()
                return reference_call(name, spec)(*args)
            if name in ("logits_sample", "sample"):
                self.asked.append((name, spec, {key: of.tolist() for key, of in args[-1]._asdict().items()}))
            drawn = torch.zeros(3, dtype=torch.int32)
            return (drawn, drawn, drawn) if name == "logprobs" else Sampled(drawn)

        return call

    def open(self, row, params, seed=0):
        self.columns.open(RowOpened(row, str(seed), int32([5]), 1, 0, params, seed))

    def draw(self, masks=None):
        """Of rows 1 and 0 and a place of padding, after one token each."""
        launch = SimpleNamespace(key=SimpleNamespace(rows=3), rows=torch.tensor([1, 0, 3], dtype=torch.int32))
        self.sampler(torch.zeros(3, 1), launch, ROWS, int32([1, 1]), masks)
        return self.asked.pop()


@pytest.mark.parametrize(
    ("params", "column", "value"),
    [
        (SamplingParams(temperature=0.5), "temperature", 0.5),
        (SamplingParams(top_k=3), "top_k", 3),
        (SamplingParams(top_p=0.25), "top_p", 0.25),
        (SamplingParams(min_p=0.125), "min_p", 0.125),
        (SamplingParams(), "seed", [77, 0]),
    ],
)
def test_a_row_opened_again_is_drawn_for_with_its_new_values(params, column, value):
    drawing = Drawing()
    drawing.open(0, GREEDY, seed=1)
    drawing.open(1, GREEDY, seed=2)
    assert drawing.draw()[1].greedy
    drawing.open(1, params, seed=77)
    _, spec, rows = drawing.draw()
    assert not spec.greedy
    assert spec.filters == (column in ("top_k", "top_p", "min_p"))
    assert rows[column][0] == value, "it has the request's before it"
    assert rows["temperature"][1:] == [0.0, 0.0], "the other row, and padding, are as they were"
    assert rows["seed"] == [[77, 0], [1, 0], [0, 0]]
    assert rows["position"] == [1, 1, 0]


def test_a_row_opened_again_is_drawn_for_by_the_op_that_its_request_needs():
    drawing = Drawing()
    drawing.open(0, GREEDY)
    drawing.open(1, GREEDY)
    assert drawing.draw()[0] == "logits_sample"
    drawing.open(1, SamplingParams(temperature=0.0, presence_penalty=0.5, logprobs=1))
    name, spec, _ = drawing.draw()
    assert name == "sample", "logits are penalised before"
    assert spec.logprobs == -1, "they are of the logits as they came"
    drawing.open(1, SamplingParams(temperature=0.0, logprobs=1))
    name, spec, _ = drawing.draw()
    assert (name, spec.logprobs) == ("logits_sample", 1)
    drawing.open(1, GREEDY)
    assert drawing.draw()[:2] == ("logits_sample", SampleSpec(VOCAB, True, False, -1))


def test_the_same_rows_are_asked_once():
    drawing = Drawing()
    drawing.open(0, GREEDY)
    drawing.open(1, SamplingParams(seed=3))
    first, kept = drawing.draw(), drawing.sampler._newest
    assert drawing.draw() == first
    assert drawing.sampler._newest is kept


MASKS = TokenMasks(int32([0, 7]), int32([[1], [2]]))  # row 7 is of another launch of the step


@pytest.mark.parametrize(
    ("params", "masks"),
    [(GREEDY, MASKS), (SamplingParams(temperature=0.0, allowed_token_ids=[1]), None)],
    ids=["grammar", "allowed tokens"],
)
def test_masks_alone_copy_no_logits(params, masks):
    """A copy of a whole batch costs far more than the mask of one row."""
    drawing = Drawing()
    drawing.open(0, GREEDY)
    drawing.open(1, params)
    drawing.draw(masks)
    assert drawing.seen["mask_logits"] is drawing.logits
    assert drawing.seen["sample"] is drawing.logits


def test_masks_beside_log_probabilities_are_put_into_a_copy_of_their_rows():
    """Log probabilities are those of the logits before the mask."""
    drawing = Drawing()
    drawing.open(0, GREEDY)
    drawing.open(1, SamplingParams(temperature=0.0, logprobs=1))
    drawing.draw(MASKS)
    assert drawing.taken == [1]
    assert drawing.seen["mask_logits"].dtype == torch.float32
    assert drawing.seen["logprobs"] is drawing.logits


@pytest.mark.parametrize(
    ("more", "op"),
    [({"presence_penalty": 0.5}, "penalise"), ({"logit_bias": {1: 2.0}}, "edit_logits")],
    ids=["penalty", "bias"],
)
def test_only_rows_with_edits_or_penalties_are_copied(more, op):
    drawing = Drawing()
    drawing.open(0, SamplingParams(seed=3, temperature=0.5))
    drawing.open(1, SamplingParams(seed=4, temperature=2.0, **more), seed=4)
    _, _, others = drawing.draw(MASKS)
    assert drawing.taken == [0], "row 1 is the first of the two"
    assert drawing.seen["mask_logits"] is drawing.logits
    assert drawing.seen[op].shape == (1, VOCAB)
    assert drawing.seen[op].dtype == torch.float32
    assert drawing.seen["sample"] is drawing.logits, "the other row is drawn for from the model's own"
    assert others["temperature"] == [2.0, 0.5, 0.0]
    _, spec, copied = drawing.asked.pop()
    assert (spec.logprobs, copied["temperature"], copied["seed"], copied["position"]) == (-1, [2.0], [[4, 0]], [1])


def test_copied_rows_are_drawn_for_as_their_request_asks_whoever_had_the_row_before():
    drawing = Drawing()
    drawing.open(0, GREEDY)
    drawing.open(1, SamplingParams(temperature=2.0, presence_penalty=0.5))
    drawing.draw()
    drawing.open(1, SamplingParams(temperature=0.25, presence_penalty=0.5), seed=9)
    drawing.draw()
    copied = drawing.asked.pop()[2]
    assert (copied["temperature"], copied["seed"]) == ([0.25], [[9, 0]])


def test_a_step_whose_masks_are_of_other_rows_is_drawn_as_without():
    drawing = Drawing()
    drawing.open(0, GREEDY)
    drawing.open(1, GREEDY)
    assert drawing.draw(TokenMasks(int32([7]), int32([[1]])))[0] == "logits_sample"


def test_with_batch_invariance_the_head_is_never_fused_with_sampling():
    """A row whose logits nothing edits would have other bits beside one whose logits are edited."""
    drawing = Drawing(batch_invariant=True)
    drawing.open(0, GREEDY)
    drawing.open(1, GREEDY)
    assert drawing.draw()[0] == "sample"
    assert drawing.seen["sample"] is drawing.logits
