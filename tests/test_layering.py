"""Imports point one way: serving -> engine -> models -> custom_calls; state and errors are leaves.

Read from the sources, so an import inside a function counts too.
"""

import ast
from pathlib import Path

import pytest

import onecat_jax

ROOT = Path(onecat_jax.__file__).parent
_LEAVES = ("errors", "state", "sharding")
_MAY_IMPORT = {
    "custom_calls": ("custom_calls", "errors", "_ext"),
    "models": ("models", "custom_calls", *_LEAVES),
    "state": ("state", "errors"),
    "sharding": ("sharding", "errors"),
    "errors": (),
    "text": ("text", "errors", "json_files", "sampling_params"),
    "functional": (
        "functional",
        "compile_cache",
        "config",
        "loading",
        "model_loader",
        "models",
        "custom_calls",
        "sampling",
        "sampling_params",
        "speculation",
        "steps",
        "text",
        *_LEAVES,
    ),
    "sampling": ("sampling", "errors", "sampling_params", "sharding", "state"),
}


def package_folder(name: str) -> Path:
    module = __import__(f"onecat_jax.{name}", fromlist=["__file__"])
    path = Path(module.__file__)
    return path.parent if path.name == "__init__.py" else path


def imported_names(source: Path) -> set[str]:
    """First component below onecat_jax of everything a file imports."""
    names = set()
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "onecat_jax":
                names |= {f"onecat_jax.{alias.name}" for alias in node.names}
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    inside = {n.removeprefix("onecat_jax.") for n in names if n.startswith("onecat_jax.")}
    return {name.split(".")[0] for name in inside}


def sources_of(package: str) -> list[Path]:
    folder = package_folder(package)
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    return [file for file in files if "tests" not in file.parts]


@pytest.mark.parametrize("package", sorted(_MAY_IMPORT))
def test_a_package_imports_only_what_lies_below_it(package):
    allowed = set(_MAY_IMPORT[package])
    for source in sources_of(package):
        assert imported_names(source) <= allowed, source


def test_flax_is_imported_by_parameter_descriptions_alone():
    users = {
        source.relative_to(package_folder(package)).as_posix()
        for package in ("custom_calls", "models", "state", "sampling", "text")
        for source in sources_of(package)
        if source != package_folder(package) and "flax" in source.read_text(encoding="utf-8")
    }
    assert users == {"qwen3_5/params.py", "dflash/params.py"}
