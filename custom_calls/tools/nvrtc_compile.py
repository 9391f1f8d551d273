"""Build-time device compiler: one .cu file to one image, with NVRTC from the build requirements.

    nvrtc_compile.py SOURCE IMAGE ARCHITECTURE

ARCHITECTURE is sm_NN (machine code) or compute_NN (PTX). No toolkit and no GPU are needed. The compiler's log, with
registers and spills per kernel, is written beside the image. Rounding is IEEE: no fast-math.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path

PACKAGES = "nvidia-cuda-nvrtc-cu12, nvidia-cuda-runtime-cu12 and nvidia-cuda-nvcc-cu12"


def find(pattern: str) -> Path:
    """The first match of `pattern` under the namespace package `nvidia`."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for hit in sorted(Path(root).glob(pattern)):
            return hit
    sys.exit(f"nvidia/{pattern} not found: install {PACKAGES} (12.8)")


def load_nvrtc() -> ctypes.CDLL:
    ctypes.CDLL(str(find("cuda_nvrtc/lib/libnvrtc-builtins.so.12*")), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(find("cuda_nvrtc/lib/libnvrtc.so.12")))


def options(source: Path, architecture: str) -> list[str]:
    flags = [
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        f"-I{find('cuda_runtime/include')}",
        f"-I{find('cuda_nvcc/include')}",
        f"-I{source.parent}",
        f"-I{source.parent.parent}",
    ]
    if architecture.startswith("sm_"):
        flags.append("--ptxas-options=-v")
    return flags


def read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    """One of the program's outputs: ProgramLog, CUBIN or PTX."""
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    return data.raw


def compile_image(source: Path, image: Path, architecture: str) -> None:
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None
    )
    if created:
        sys.exit(f"nvrtcCreateProgram failed for {source.name} with code {created}")
    flags = [flag.encode() for flag in options(source, architecture)]
    code = nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    log = read(nvrtc, program, "ProgramLog").rstrip(b"\0")
    image.with_name(image.name + ".log").write_bytes(log)
    if code:
        sys.exit(f"NVRTC failed for {source.name}, {architecture} (code {code}):\n{log.decode()}")
    kind = "CUBIN" if architecture.startswith("sm_") else "PTX"
    image.write_bytes(read(nvrtc, program, kind))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    compile_image(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3])
