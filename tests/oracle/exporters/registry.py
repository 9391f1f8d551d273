"""Which formats the installed packages can write."""

import importlib
import importlib.metadata

from .common import Format

# Before this release compressed-tensors wrote weight_g_idx; the modules of 0.12 are used for it.
LAST_WITH_ORDER = (0, 12)


def _modules() -> tuple[str, ...]:
    found = importlib.metadata.version("compressed-tensors").split(".")
    if (int(found[0]), int(found[1])) <= LAST_WITH_ORDER:
        return ("act_order_export",)
    return (
        "modelopt_export",
        "compressed_export",
        "finegrained_export",
        "awq_export",
        "quark_export",
    )


def _formats() -> dict[str, Format]:
    modules = (importlib.import_module(f".{name}", __package__) for name in _modules())
    return {form.name: form for module in modules for form in module.FORMATS}


FORMATS = _formats()
