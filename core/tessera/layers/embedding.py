"""Both ends of the vocabulary: token ids to vectors, vectors to logits. Both are sharded by vocabulary rows."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tessera.layers.build import TENSOR_GROUP, Build
from tessera.layers.linear import product_parameter
from tessera.layers.weights import Parameter
from tessera.ops import (
    EmbeddingSpec,
    LinearSpec,
    LogitsSampleSpec,
    PackedEmbeddingSpec,
    SampleSpec,
    SegmentEmbeddingSpec,
)
from tessera.ops.sampling import bind_finish
from tessera.ops.tensors import torch_dtype
from tessera.platform.ops import BoundOps, Packed
from tessera.platform.quantization import Part, Unpacking

HEAD = "lm_head"
TABLE = "a table to look up in, which is no product"
"""Why such a weight is never quantized."""


def vocabulary_part(
    build: Build, name: str, vocab: int, n: int, *, tied: bool, stored: int | None = None
) -> tuple[Part, int]:
    """This rank's rows of a [vocab, n] weight, and the number of the first one. All ranks have the same number of rows;
    the last ones are padded with zeros. tied: of the embedding and the head, whichever of the two is stored. stored:
    how many rows the weight has, if fewer."""
    also = (f"{HEAD}.weight",) if tied else ()
    if build.group.size == 1 and stored is None:
        return Part(f"{name}.weight", (vocab, n), also=also), 0
    each = -(-vocab // build.group.size)
    start = build.group.rank * each
    whole = vocab if stored is None else stored
    return Part(f"{name}.weight", (whole, n), (start, start + each), also=also), start


class Embedding:
    """[T] -> [T, n], times scale, from a table of its own. With several ranks the result is a partial sum that the
    first norm completes, unless `whole`. tied: the table is the head's weight too."""

    def __init__(
        self,
        build: Build,
        name: str,
        vocab: int,
        n: int,
        *,
        tied: bool = False,
        scale: float = 1.0,
        whole: bool = False,
    ) -> None:
        part, start = vocabulary_part(build, name, vocab, n, tied=tied)
        spec = EmbeddingSpec(part.shape[0], n, build.dtype, start, build.group.size > 1, scale)
        build.weights.skip(name, TABLE)
        self.complete = build.group.all_reduce if whole else _as_it_is
        self.parameter = build.register_parameter(
            Parameter({"weight": [part]}, lambda raw, into: build.ops.prepare("embedding", spec, raw, into))
        )
        self.call = build.ops.bind("embedding", spec)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.complete(self.call(tokens, self.parameter.tensor))


class PositionEmbedding:
    """[T] positions -> [T, n], whole on every rank. first: the row of position 0 in a table of `rows`. stored: the
    whole name of the table in the checkpoint, if it is no weight."""

    def __init__(self, build: Build, name: str, rows: int, first: int, n: int, *, stored: str = "") -> None:
        part = Part(stored or f"{name}.weight", (rows, n), (first, rows))
        spec = EmbeddingSpec(rows - first, n, build.dtype)
        build.weights.skip(name, TABLE)
        self.parameter = build.register_parameter(
            Parameter({"weight": [part]}, lambda raw, into: build.ops.prepare("embedding", spec, raw, into))
        )
        self.call = build.ops.bind("embedding", spec)

    def __call__(self, positions: Tensor) -> Tensor:
        result: Tensor = self.call(positions, self.parameter.tensor)
        return result


class SinusoidEmbedding:
    """[T] positions -> [T, n], whole on every rank: sines of a position, then cosines of it, each at n / 2 frequencies
    (arXiv:1706.03762, section 3.5)."""

    def __init__(
        self, build: Build, rows: int, first: int, n: int, *, reaching: bool = False, scale: float = 1.0
    ) -> None:
        """rows: of the table. first: the position in the formula of position 0. reaching: whether the last frequency is
        1 / 10000, and not the first that would be left out. scale: multiplies all."""
        spec = EmbeddingSpec(rows, n, build.dtype)

        def prepare(_: dict[str, Tensor], into: Packed | None) -> Packed:
            half = n // 2
            steps = torch.arange(half, dtype=torch.float64) / (half - 1 if reaching else half)
            angles = torch.arange(first, first + rows, dtype=torch.float64)[:, None] * 10000.0**-steps
            table = (torch.cat([angles.sin(), angles.cos()], dim=1) * scale).to(torch_dtype(build.dtype))
            return build.ops.prepare("embedding", spec, {"weight": table.to(build.device.target)}, into)

        self.parameter = build.register_parameter(Parameter({}, prepare))
        self.call = build.ops.bind("embedding", spec)

    def __call__(self, positions: Tensor) -> Tensor:
        result: Tensor = self.call(positions, self.parameter.tensor)
        return result


class SegmentEmbedding:
    """[T, n], whole on every rank: of the token's type, in a table of `rows`."""

    def __init__(self, build: Build, name: str, rows: int, n: int) -> None:
        spec = SegmentEmbeddingSpec(rows, n, build.dtype)
        build.weights.skip(name, TABLE)
        self.rows = rows
        self.parameter = build.register_parameter(
            Parameter(
                {"weight": [Part(f"{name}.weight", (rows, n))]},
                lambda raw, into: build.ops.prepare("segment_embedding", spec, raw, into),
            )
        )
        self.call = build.ops.bind("segment_embedding", spec)

    def __call__(self, positions: Tensor, boundaries: Tensor | None) -> Tensor:
        """boundaries [T]: where tokens of type 1 begin; None: all are of type 0."""
        result: Tensor = self.call(positions, boundaries if self.rows > 1 else None, self.parameter.tensor)
        return result


class PackedEmbedding:
    """Like Embedding, but looks rows up in a product's weight: the head's, so that only one copy is kept, or one of its
    own that stays as it is stored. Requires may_look_up()."""

    def __init__(self, build: Build, spec: PackedEmbeddingSpec, weight: Parameter, *, whole: bool = False) -> None:
        self.complete, self.parameter = build.group.all_reduce if whole else _as_it_is, weight
        self.call = build.ops.bind("packed_embedding", spec)

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.complete(self.call(tokens, self.parameter.packed))


def _stored_embedding(
    build: Build, name: str, vocab: int, n: int, *, scale: float, whole: bool
) -> PackedEmbedding | None:
    """An embedding that is not the head's, if its rows can be looked up in the blocks that it is stored in."""
    part, start = vocabulary_part(build, name, vocab, n, tied=False)
    chosen = build.weights.choose_table(LinearSpec(part.shape[0], n, build.dtype), part, build.ops)
    if chosen is None:
        return None
    spec = PackedEmbeddingSpec(chosen.spec, start, build.group.size > 1, scale)
    if not may_look_up(build.ops, spec):
        return None
    build.weights.count_table(chosen)
    parts = {one: joins[0] for one, joins in chosen.parts.items()}

    def prepare(raw: dict[str, Tensor], into: Packed | None) -> Packed:
        if chosen.convert is not None:
            chosen.convert(raw)
        return build.ops.prepare("linear", chosen.spec, raw, into)

    return PackedEmbedding(build, spec, build.register_parameter(Parameter(parts, prepare)), whole=whole)


def may_look_up(ops: BoundOps, spec: PackedEmbeddingSpec) -> bool:
    """Whether rows can be looked up in the head's weight: by a platform kernel, or by the reference if the weight is
    quantized and the reference also multiplies with it. A plain weight that no kernel reads stays a table, which the
    head shares unless a platform packs it. A feature that wraps the embedding op always gets a table."""
    if "embedding" in ops.wrappers:
        return False
    return ops.native("packed_embedding", spec) or (
        spec.linear.scheme is not None and not ops.native("linear", spec.linear)
    )


def _as_it_is(x: Tensor) -> Tensor:
    return x


class Head:
    """[S, k] -> logits [S, vocab]. sampling_spec: the same, fused with sampling into one composite."""

    def __init__(
        self,
        build: Build,
        name: str,
        vocab: int,
        k: int,
        *,
        tied: bool = False,
        bias: str = "",
        logits_bias: str = "",
        unwritten: int = 0,
        cap: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        """tied: the weight is the embedding's. bias: the name of one that is stored as those of products are, "" for
        none. logits_bias: of one that is stored as a row. unwritten: how many of the last tokens have no row in the
        weight: their logits are far below all others."""
        self.build, self.cap, self.scale = build, cap, scale
        written = vocab - unwritten
        part, self.start = vocabulary_part(build, name, vocab, k, tied=tied, stored=written if unwritten else None)
        own = [Part(bias, (vocab,), part.rows)] if bias else []
        biases = [_logits_bias(logits_bias, vocab, part)] if logits_bias else own
        self.spec, self.parameter = product_parameter(
            build,
            LinearSpec(part.shape[0], k, build.dtype, bias=bool(biases or unwritten)),
            {"weight": [part], **({"bias": biases} if biases else {})},
            module="Embedding" if tied else "Linear",
            bias=partial(_unwritten_bias, build, part.shape[0], written - self.start) if unwritten else None,
        )
        self.linear = build.ops.bind("linear", self.spec)
        self.finish = bind_finish(self.sampling_spec(SampleSpec(vocab)), build.ops)

    @property
    def weight(self) -> Packed:
        return self.parameter.packed

    def rows_spec(self, scale: float) -> PackedEmbeddingSpec:
        """The spec of using its weight as an embedding."""
        return PackedEmbeddingSpec(self.spec, self.start, self.build.group.size > 1, scale)

    def sampling_spec(self, sample: SampleSpec) -> LogitsSampleSpec:
        gather = TENSOR_GROUP if self.build.group.size > 1 else None
        return LogitsSampleSpec(self.spec, sample, gather, self.cap, self.scale)

    def __call__(self, rows: Tensor) -> Tensor:
        result: Tensor = self.finish(self.build.group.all_gather(self.linear(rows, self.weight), -1))
        return result


def _unwritten_bias(build: Build, rows: int, written: int) -> Tensor:
    """[rows], of which the first ones are of tokens that are written."""
    dtype = torch_dtype(build.dtype)
    least = torch.finfo(dtype).min / 2  # finite, as a logprob of a prompt's token may be
    places = torch.arange(rows, device=build.device.target)
    return torch.where(places < written, 0.0, least).to(dtype)


def _logits_bias(name: str, vocab: int, weight: Part) -> Part:
    """A bias that is stored as [1, vocab], of the rows of the weight's shard."""
    rows, (start, stop) = weight.shape[0], weight.rows or (0, vocab)
    flat = Unpacking(lambda stored: F.pad(stored.flatten(), (0, rows - stored.numel())), rows)
    return Part(name, (1, vocab), columns=(start, min(stop, vocab)), fill=0.0, unpacking=flat)


def vocabulary_ends(
    build: Build,
    name: str,
    vocab: int,
    n: int,
    *,
    tied: bool,
    embedding_scale: float = 1.0,
    whole: bool = False,
    logits_cap: float = 0.0,
    logits_scale: float = 1.0,
    head_name: str = HEAD,
    head_bias: bool = False,
    logits_bias: str = "",
    unwritten: int = 0,
) -> tuple[Embedding | PackedEmbedding | None, Head | None]:
    """The embedding on the first pipeline stage, the head on the last one of a model that generates, else None. name,
    head_name: of their weights. tied: config.json says that the head uses the same weight; both stages load it, unless
    the checkpoint has another for the head. whole: the embedding is complete on every rank. head_bias: whether the head
    has a bias, under its own name. logits_bias: the name of a bias that is stored as a row, "" for none. unwritten: how
    many of the last tokens the head has no rows for."""
    first, last = build.is_first_stage, build.is_last_stage and build.generates
    tied = tied and (first or last) and build.are_one([f"{name}.weight", f"{head_name}.weight"])
    head = None
    if last or (first and tied):
        before = len(build.parameters)
        own_name = name if tied else head_name
        head = Head(
            build,
            own_name,
            vocab,
            n,
            tied=tied,
            bias=f"{head_name}.bias" if head_bias else "",
            logits_bias=logits_bias,
            unwritten=unwritten,
            cap=logits_cap,
            scale=logits_scale,
        )
        if first and tied and may_look_up(build.ops, head.rows_spec(embedding_scale)):
            spec = head.rows_spec(embedding_scale)
            return PackedEmbedding(build, spec, head.parameter, whole=whole), head if last else None
        if not last:  # its weight cannot be looked up in
            del build.parameters[before:]
            head = None
    if not first:
        return None, head
    if not tied:
        stored = _stored_embedding(build, name, vocab, n, scale=embedding_scale, whole=whole)
        if stored is not None:
            return stored, head
    return Embedding(build, name, vocab, n, tied=tied, scale=embedding_scale, whole=whole), head
