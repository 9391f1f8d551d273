"""What the compiler says about the GDN kernels on a V100, which no test machine has. Oracle: its report per kernel."""

import importlib.util
import re
from pathlib import Path

import pytest

from onecat_jax import _ext

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nvidia") is None
    or importlib.util.find_spec("nvidia.cuda_nvrtc") is None,
    reason="needs the device compiler of the build requirements",
)
FOLDER = Path(__file__).resolve().parents[1]
TOOL = FOLDER.parent / "tools" / "nvrtc_compile.py"
KERNELS = {  # blocks per multiprocessor
    "gdn_rows": {"gdn_step": 2, "gdn_verify": 2, "gdn_commit": 2},
    "gdn_chunks_m8n8k4": {
        "gdn_chunk_inputs_1": 1,
        "gdn_chunk_inputs_2": 1,
        "gdn_chunk_scan_short_1": 1,
        "gdn_chunk_scan_short_2": 1,
    },
}
REGISTERS, THREADS = 65536, 256


def report(module: str, folder: Path) -> dict[str, dict[str, int]]:
    """Registers, spilled bytes and static shared memory of every kernel of a module on sm_70."""
    spec = importlib.util.spec_from_file_location("nvrtc_compile", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    image = folder / f"{module}.sm_70"
    tool.compile_image(FOLDER / f"{module}.cu", image, "sm_70")
    log = image.with_name(image.name + ".log").read_text()
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        shared = re.search(r"(\d+) bytes smem", part)
        found[part.split("'")[0]] = {
            "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", part))),
            "registers": int(re.search(r"Used (\d+) registers", part)[1]),
            "shared": int(shared[1]) if shared else 0,
        }
    return found


@pytest.mark.parametrize("module", KERNELS)
def test_nothing_spills_and_as_many_blocks_fit_as_planned(module, tmp_path):
    found = report(module, tmp_path)
    assert set(found) == set(KERNELS[module])
    for kernel, facts in found.items():
        assert facts["spilled"] == 0, kernel
        allocated = -(-facts["registers"] // 8) * 8 * THREADS
        assert REGISTERS // allocated >= KERNELS[module][kernel], (kernel, facts)


def test_every_gpu_has_an_image():
    for capability in (70, 75, 80, 90, 120):
        assert _ext.choose_image("gdn_rows", capability)[0]
    assert _ext.choose_image("gdn_chunks_m8n8k4", 70)[0] == "sm_70"
    for capability in (80, 90, 120):
        assert _ext.choose_image("gdn_chunks_m16n8k16", capability)[0]
