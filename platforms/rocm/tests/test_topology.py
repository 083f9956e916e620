"""What sysfs says of the cards, and what the probe makes of it. The trees are made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.platform.probing import NoDeviceError
from tessera_rocm import probe as module
from tessera_rocm.facts import facts_of
from tessera_rocm.topology import DEVICE, NODES, Card, cards, gfx_of
from tessera_triton import TARGETS

GIB = 1 << 30
PROCESSOR = {"cpu_cores_count": 64, "simd_count": 0, "gfx_target_version": 0}
MI300X = {
    "simd_count": 1216, "simd_per_cu": 4, "wave_front_size": 64, "lds_size_in_kb": 64, "gfx_target_version": 90402,
    "drm_render_minor": 128, "unique_id": 1234567890123456789,
}  # fmt: skip
RADEON = {
    "simd_count": 192, "simd_per_cu": 2, "wave_front_size": 32, "lds_size_in_kb": 64, "gfx_target_version": 110000,
    "drm_render_minor": 129,
}  # fmt: skip
PARTITION = MI300X | {"simd_count": 152}
OLD = RADEON | {"gfx_target_version": 100300}


def tree(root: Path, *nodes: dict[str, int], memory: int = 192 * GIB, name: str = "") -> Path:
    """A file system with these nodes. name: of the product of every card."""
    (root / DEVICE).parent.mkdir(parents=True)
    (root / DEVICE).touch()
    for number, node in enumerate(nodes):
        _write(root / NODES / f"{number}/properties", node)
        _write(root / NODES / f"{number}/mem_banks/0/properties", {"heap_type": 1, "size_in_bytes": memory})
        _write(root / NODES / f"{number}/mem_banks/1/properties", {"heap_type": 0, "size_in_bytes": 7})
        if name and node["simd_count"]:
            place = root / f"sys/class/drm/renderD{node['drm_render_minor']}/device/product_name"
            place.parent.mkdir(parents=True)
            place.write_text(f"{name}\n", encoding="utf-8")
    return root


def _write(file: Path, said: dict[str, int]) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{name} {number}\n" for name, number in said.items()), encoding="utf-8")


@pytest.mark.parametrize(
    ("version", "gfx"),
    [(90402, "gfx942"), (90010, "gfx90a"), (90500, "gfx950"), (110501, "gfx1151"), (120001, "gfx1201")],
)
def test_versions_are_architectures(version, gfx):
    assert gfx_of(version) == gfx


def test_cards_are_told_and_processors_are_not(tmp_path):
    found = cards(tree(tmp_path, PROCESSOR, MI300X, name="AMD Instinct MI300X"), {})
    assert found == [Card("AMD Instinct MI300X", "gfx942", 192 * GIB, 304, 64, 64 << 10)]


def test_a_card_without_a_product_name_has_that_of_its_architecture(tmp_path):
    assert [card.name for card in cards(tree(tmp_path, PROCESSOR, RADEON), {})] == ["AMD GPU gfx1100"]


def test_each_partition_of_a_card_is_a_card_in_the_order_of_numbers(tmp_path):
    found = cards(tree(tmp_path, PROCESSOR, *[PARTITION] * 10, RADEON), {})
    assert [card.processors for card in found] == [38] * 10 + [96]


def test_a_node_that_may_not_be_read_is_left_out(tmp_path):
    root = tree(tmp_path, PROCESSOR, MI300X, RADEON)
    (root / NODES / "1/properties").unlink()
    assert [card.gfx for card in cards(root, {})] == ["gfx1100"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ["gfx942", "gfx1100"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["gfx1100"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["gfx1100"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["gfx942"]),
        ({"ROCR_VISIBLE_DEVICES": "1,0", "HIP_VISIBLE_DEVICES": "1"}, ["gfx942"]),
        ({"HIP_VISIBLE_DEVICES": "1,7,0"}, ["gfx1100"]),
        ({"HIP_VISIBLE_DEVICES": ""}, ["gfx942", "gfx1100"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-0123456789abcdef"}, ["gfx942", "gfx1100"]),
    ],
)
def test_the_environment_chooses_cards(tmp_path, environment, expected):
    assert [card.gfx for card in cards(tree(tmp_path, PROCESSOR, MI300X, RADEON), environment)] == expected


def test_an_environment_that_hides_every_card_is_told(tmp_path):
    with pytest.raises(NoDeviceError, match="^the environment hides every AMD GPU"):
        cards(tree(tmp_path, PROCESSOR, MI300X), {"HIP_VISIBLE_DEVICES": "-1"})


def test_the_reasons_why_there_is_no_card(tmp_path):
    found = module.probe(tmp_path)
    assert (found.score, found.reason) == (0, "the kernel's driver for AMD GPUs (amdgpu) is not loaded")
    assert module.probe(tree(tmp_path, PROCESSOR)).reason == "the kernel's driver finds no AMD GPU"


def test_a_container_without_access_is_told_what_to_do(tmp_path):
    root = tree(tmp_path, PROCESSOR, MI300X)
    (root / DEVICE).unlink()
    found = module.probe(root)
    assert found.score == 0
    assert found.reason == (
        "there is AMD GPU gfx942, but /dev/kfd cannot be opened: add the user to the group render, or start the "
        "container with --device=/dev/kfd --device=/dev/dri --group-add render"
    )


def test_the_probe_names_card_and_reason(tmp_path, monkeypatch):
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "absent", lambda name, devices: None)
    found = module.probe(tree(tmp_path, PROCESSOR, MI300X, name="AMD Instinct MI300X"))
    assert (found.score, found.reason) == (100, "AMD Instinct MI300X (gfx942), Triton kernels")
    assert [(device.name, device.index, device.memory) for device in found.devices] == [
        ("AMD Instinct MI300X", 0, 192 * GIB)
    ]


@pytest.mark.parametrize(
    ("node", "missing", "expected"),
    [
        (RADEON | {"gfx_target_version": 110001}, None, (100, "AMD GPU gfx1101, Triton kernels as for gfx1100")),
        (RADEON, "no Triton", (50, "AMD GPU gfx1100, on reference ops: no Triton")),
        (OLD, None, (50, "AMD GPU gfx1030, on reference ops: there are kernels for gfx90a, gfx942")),
    ],
)
def test_why_a_card_has_its_score(tmp_path, node, missing, expected):
    score, reason = module.why(*cards(tree(tmp_path, node), {}), missing=missing)
    assert score == expected[0]
    assert reason.startswith(expected[1])


def test_a_card_that_kernels_are_compiled_for_has_those_facts(tmp_path):
    (card,) = cards(tree(tmp_path, MI300X), {})
    assert facts_of(card, card.gfx) == TARGETS["gfx942"]
    assert TARGETS["gfx942"].fp8 == "float8_e4m3fnuz"


def test_shared_memory_and_compute_units_are_the_cards_own(tmp_path):
    (card,) = cards(tree(tmp_path, PARTITION | {"lds_size_in_kb": 32}), {})
    facts = facts_of(card, card.gfx)
    assert facts is not None
    assert (facts.shared_bytes, facts.processors) == (32 << 10, 38)


def test_waves_of_another_size_have_no_kernels(tmp_path):
    (card,) = cards(tree(tmp_path, RADEON | {"wave_front_size": 64}), {})
    assert facts_of(card, card.gfx) is None


def test_the_probe_imports_neither_torch_nor_triton():
    program = "import sys; sys.modules.update(torch=None, triton=None); from tessera_rocm import probe; probe.probe()"
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


ROCMINFO = """\
#!/bin/sh
cat <<'END'
*******
Agent 1
*******
  Name:                    AMD Ryzen 9
  Marketing Name:          AMD Ryzen 9
  Device Type:             CPU
  Compute Unit:            32
*******
Agent 2
*******
  Name:                    gfx1100
  Uuid:                    GPU-0123456789abcdef
  Marketing Name:          AMD Radeon RX 7900 XTX
  Device Type:             GPU
  Compute Unit:            96
  Wavefront Size:          32(0x20)
  Pool Info:
    Pool 1
      Segment:                 GLOBAL; FLAGS: COARSE GRAINED
      Size:                    25149440(0x17fc000) KB
    Pool 2
      Segment:                 GROUP
      Size:                    64(0x40) KB
END
"""


def test_within_windows_rocminfo_tells_of_the_cards(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dxg").touch()
    environment = {"PATH": f"{tmp_path}/bin"}
    with pytest.raises(NoDeviceError, match="^within Windows cards are found by rocminfo, which is not installed"):
        cards(tmp_path, environment)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/rocminfo"
    program.write_text(ROCMINFO, encoding="utf-8")
    program.chmod(0o755)
    (found,) = cards(tmp_path, environment)
    assert found == Card("AMD Radeon RX 7900 XTX", "gfx1100", 25149440 << 10, 96, 32, 64 << 10)
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    with pytest.raises(NoDeviceError, match="^rocminfo finds no AMD GPU"):
        cards(tmp_path, environment)
