"""Checks what the installed wheel holds, from its own record: one top-level package, no sources of the extension, no tests."""

import sys
from importlib.metadata import distribution
from pathlib import PurePosixPath

FORBIDDEN = {".cc", ".h", ".cu", ".cuh", ".in"}
REQUIRED = (
    "onecat_jax/py.typed",
    "onecat_jax/_ext.pyi",
    "onecat_jax/models/spec.py",
    "onecat_jax/custom_calls/linear/call.py",
    "onecat_jax/assets/tiny/target/model.safetensors",
    "onecat_jax/assets/tiny/dflash2/model.safetensors",
)


def problems(files: list[PurePosixPath]) -> list[str]:
    """Sentences about what is wrong."""
    found = []
    top = {f.parts[0] for f in files if f.parts[0] != ".."}  # ".." leads to the console script
    extra = {name for name in top if name != "onecat_jax" and not name.endswith(".dist-info")}
    if extra:
        found.append(f"top-level names beside onecat_jax: {', '.join(sorted(extra))}")
    for file in files:
        if file.suffix in FORBIDDEN or "tests" in file.parts or "tools" in file.parts:
            found.append(f"{file} must not be installed")
    names = {str(f) for f in files}
    found += [f"{name} is missing" for name in REQUIRED if name not in names]
    if not any(n.startswith("onecat_jax/_ext.") and n.endswith(".so") for n in names):
        found.append("the compiled extension is missing")
    return found


def main() -> None:
    files = [PurePosixPath(str(f)) for f in distribution("onecat-jax").files or ()]
    wrong = problems(files)
    for sentence in wrong:
        print(sentence)
    if wrong:
        sys.exit(1)
    print(f"{len(files)} files, all under onecat_jax")


if __name__ == "__main__":
    main()
