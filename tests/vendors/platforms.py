"""The platforms of this suite: over which device each runs, and what is true of it alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

GAUDI_CARD = {"vendor": "0x1da3", "device_type": "GAUDI3", "status": "Operational"}
SPYRE_CARD = "sys/bus/pci/devices/0000:00:00.0"

# of those that run on several devices and are found by their own package
FILES = ("test_adapters.py", "test_discovery.py", "test_two_devices.py")

# rows 1, 2 and 4 that decode, and prompts of the fewest tokens, all over block tables of one width
PROGRAMS = 3 + 1

ALL_KINDS = frozenset({"decode", "verify", "prefill"})

# attention that is not computed under a mask alone, and ops, of which the compiler gets core's definitions
MASK_ALONE = r"softcap|sinks|-over-|^op/|^reads/linear$|^packed/"


@dataclass(frozen=True)
class Machine:
    """A machine with such devices, and what `tessera platforms` says of it."""

    # by their path, with their text; a Path is where a link leads to
    files: Mapping[str, str | Path]
    # names of the devices
    devices: tuple[str, ...]
    # why the platform is chosen
    reason: str
    # a distribution of the vendor's that is installed, and its version
    distribution: tuple[str, str] | None = None


@dataclass(frozen=True)
class VendorPlatform:
    """A platform over an emulated device, with a stand-in for its vendor's modules."""

    name: str
    # folder of its package in platforms/, and of the stand-in in stand_ins/
    package: str
    # dotted path of its class
    path: str
    # dotted path of the class that the conformance kit tries: launches are not compiled there, which takes a second for
    # each shape of each engine
    conformance_path: str
    # of the vendor's, whose import registers the device with torch
    module: str
    # of models that engines serve
    families: tuple[str, ...]
    # kinds of launches that engines with drafts have
    draft_kinds: frozenset[str]
    # regular expressions of the ids of the kit's cases: what a platform without a manifest does not have on one device
    # of 256 MiB (1 GiB on `gaudi`), or does not claim, and what it leaves to the reference
    absent: str
    declined: str
    # words in which it leaves a case to the reference beside those
    not_taken: tuple[str, ...] = ("no kernel",)
    dtype: str = "float32"
    # of tiny models, where they are not the usual ones
    sizes: Mapping[str, int] = field(default_factory=lambda: {"head_dim": 24})
    # whether it takes heads of a multiple of 128 alone
    wide_heads: bool = False
    # tokens
    block_size: int = 128
    # programs that are compiled before the first step; None: launches are captured
    programs: int | None = None
    # whether steps read the device, as they do where the host is never ahead of it
    reads: bool = False
    # test files that it runs beside those of all
    files: tuple[str, ...] = ()
    # for test_discovery.py
    machine: Machine | None = None


VENDOR_PLATFORMS: Mapping[str, VendorPlatform] = {
    "hpu": VendorPlatform(
        name="gaudi",
        package="gaudi",
        path="tessera_gaudi.platform:GaudiPlatform",
        conformance_path="tessera_gaudi.platform:GaudiPlatform",
        module="habana_frameworks.torch",
        families=("llama", "mistral", "qwen3", "gemma2", "mixtral", "glm4_moe"),
        draft_kinds=ALL_KINDS,
        absent=r"^(device/manifest|collectives|overlap/workers|batch-invariant/)|/far-apart|/lse-",
        # attention that FusedSDPA does not compute, and weights in other formats than fp8 with a scale for each output:
        # the kit's own of this kind have activations that are not in fp8
        declined=r"softcap|sinks|-over-|^reads/linear$|^scheme/|^packed/(?!fp8(-static)?-bfloat16$)",
        not_taken=(
            "no kernel",
            "no offset to the weight",
            "float16 is not among its dtypes",
            "torch's own product",
            "no biases",
            "no experts without gates, or with clamped ones",
        ),
        block_size=16,
        files=(*FILES, "test_doubling.py", "test_gaudi.py"),
        machine=Machine(
            files={
                f"sys/class/accel/{node}/device/{name}": text
                for node in ("accel0", "accel1")
                for name, text in GAUDI_CARD.items()
            }
            | dict.fromkeys(("dev/accel/accel0", "dev/accel/accel1"), ""),
            devices=("Intel Gaudi 3", "Intel Gaudi 3"),
            reason="Intel Gaudi 3, SynapseAI's ops and HPU graphs",
        ),
    ),
    "npu": VendorPlatform(
        name="ascend",
        package="ascend",
        path="tessera_ascend.platform:AscendPlatform",
        conformance_path="tessera_ascend.platform:AscendPlatform",
        module="torch_npu",
        families=("llama", "qwen3", "gemma2", "mixtral", "glm4_moe"),
        draft_kinds=frozenset({"decode", "verify"}),
        absent=r"^(device/manifest|collectives|overlap/workers|batch-invariant/|scheme$)|/far-apart|/lse-",
        # attention that the fused op does not compute, and products whose sizes are no multiples of the tiles, which
        # most of the kit's are not
        declined=r"window|softcap|sinks|-over-|^(attention|fused|cache)/.*float32|^(packed|scheme)/"
        r"|^op/linear/(?!sizes$)|^reads/linear$",
        not_taken=(
            "no kernel",
            "no gate of gelu",
            "no gate of gelu_tanh",
            "no products in float32",
            "no biases",
            "no experts without gates, or with clamped ones",
        ),
        # which the fused attention takes, and in which rounding decides fewer tokens than in bfloat16
        dtype="float16",
        # multiples of the matrix unit's tiles
        sizes={"head_dim": 32, "hidden_size": 96, "intermediate_size": 160},
        block_size=16,
        files=(*FILES, "test_ascend.py", "test_ascend_products.py"),
        machine=Machine(
            files=dict.fromkeys(("dev/davinci_manager", "dev/davinci0", "dev/davinci1"), ""),
            devices=("Ascend NPU 0", "Ascend NPU 1"),
            reason="2 Ascend NPUs, torch_npu's ops and ACL graphs",
        ),
    ),
    "neuron": VendorPlatform(
        name="neuron",
        package="neuron",
        path="tessera_neuron.platform:NeuronPlatform",
        conformance_path="tests.vendors.uncompiled:Neuron",
        module="torch_neuronx",
        families=("llama", "gemma2", "mixtral"),
        draft_kinds=ALL_KINDS,
        absent=r"^(device/manifest|collectives|overlap/workers|batch-invariant/|scheme$)|/far-apart|/lse-",
        declined=MASK_ALONE,
        programs=PROGRAMS,
        files=(*FILES, "test_doubling.py", "test_neuron.py"),
        machine=Machine(
            files={"dev/neuron0": ""},
            devices=("Neuron device 0",),
            reason="1 Neuron device, compiled by torch-neuronx 2.14.0; experimental, never run on one",
            distribution=("torch-neuronx", "2.14.0"),
        ),
    ),
    "spyre": VendorPlatform(
        name="spyre",
        package="spyre",
        path="tessera_spyre.platform:SpyrePlatform",
        conformance_path="tests.vendors.uncompiled:Spyre",
        module="torch_spyre",
        families=("llama", "mixtral"),
        draft_kinds=ALL_KINDS,
        absent=r"^(device/(manifest|synchronize)|collectives|overlap|batch-invariant/|reads$|scheme$)|/far-apart|/lse-",
        # heads that are no multiple of a stick, and quantized weights, beside
        declined=rf"{MASK_ALONE}|heads-of-(80|96)|^scheme/",
        # the device's
        dtype="float16",
        # halves of heads are whole sticks
        sizes={"head_dim": 128},
        wide_heads=True,
        block_size=64,
        programs=PROGRAMS,
        reads=True,
        files=(*FILES, "test_spyre.py"),
        machine=Machine(
            files={
                f"{SPYRE_CARD}/vendor": "0x1014",
                f"{SPYRE_CARD}/class": "0x120000",
                f"{SPYRE_CARD}/iommu_group": Path("sys/kernel/iommu_groups/7"),
                "dev/vfio/7": "",
            },
            devices=("Spyre 0000:00:00.0",),
            reason="1 Spyre card, compiled by torch_spyre; experimental, never run on one",
        ),
    ),
    "tpu": VendorPlatform(
        name="torch-tpu",
        package="xla",
        path="tessera_xla.platform:TorchTpuPlatform",
        conformance_path="tests.vendors.uncompiled:TorchTpu",
        module="torch_tpu",
        families=("llama", "gemma2"),
        draft_kinds=ALL_KINDS,
        absent=r"^(device/(manifest|peak|synchronize)|collectives|overlap|batch-invariant/|reads$|scheme$)"
        r"|/far-apart|/lse-",
        declined=MASK_ALONE,
        programs=PROGRAMS,
        reads=True,
    ),
}
"""By the name of the device."""
