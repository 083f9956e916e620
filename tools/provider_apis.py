"""The interfaces of other packages that platforms call, as the committed JSON has them, to compare after an update:

    python -m tools.provider_apis ops vllm_xpu_kernels-0.1.16.2-*.whl > platforms/xpu/tests/vllm_xpu_kernels.json
    python -m tools.provider_apis ops torch_npu-2.13.0-*.whl npu_swiglu ... > platforms/ascend/tests/torch_npu.json
    python -m tools.provider_apis functions flash_attn 2.8.3 flash_attn_interface.py flash_attn_varlen_func

`ops` reads the schemas that the shared libraries of a wheel register with torch, by library, all of them or those of
some ops; `functions` reads the arguments of functions, of a Class.method, or of a Class whose fields are keywords, from
a source file. Neither imports the package."""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

_NAME, _ARGUMENTS, _RESULT = rb"[a-zA-Z_]\w*", rb"\([^()]*(?:\([^()]*\)[^()]*)*\)", rb"[\w(][\w, \[\]()?!]*"
_SCHEMA = re.compile(_NAME + _ARGUMENTS + rb" *-> *" + _RESULT)


def ops_of(wheel: Path, wanted: Collection[str] = ()) -> dict[str, Any]:
    """Strings that torch.library parses, from the wheel's libraries that Python imports, or, if ops are named, those of
    these from all of its libraries."""
    name, version = wheel.name.split("-")[:2]
    libraries = {}
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(archive.namelist()):
            if member.endswith(".so" if wanted else ".abi3.so"):
                found = schemas(archive.read(member))
                kept = [said for said in found if not wanted or re.split(r"[.(]", said)[0] in wanted]
                if kept:
                    libraries[Path(member).name.removesuffix(".so").removesuffix(".abi3")] = kept
    return {"package": name, "version": version, "ops": libraries}


def schemas(library: bytes) -> list[str]:
    """The strings that end with a zero byte and that torch parses, sorted, each once."""
    from torch._C import parse_schema

    found = []
    for text in re.findall(rb"[\x20-\x7e]{8,}(?=\0)", library):
        if _SCHEMA.fullmatch(text.strip()):
            said = re.sub(r"\s+", " ", text.decode()).strip().replace("( ", "(").replace(" )", ")")
            try:
                parse_schema(said)
            except RuntimeError:  # it only looks like one
                continue
            found.append(said)
    return sorted(set(found))


def functions_of(package: str, version: str, source: Path, names: list[str]) -> dict[str, Any]:
    """Their arguments without annotations, as Python writes them. names: of functions, "Class.method", and dataclasses
    whose fields are keywords. Of several with one name, the last, as Python takes it."""
    body = ast.parse(source.read_text(encoding="utf-8")).body
    defined = [(node.name, node) for node in body if isinstance(node, ast.FunctionDef)]
    found = {}
    for owner in (node for node in body if isinstance(node, ast.ClassDef)):
        defined += [(f"{owner.name}.{node.name}", node) for node in owner.body if isinstance(node, ast.FunctionDef)]
        if owner.name in names:
            found[owner.name] = f"({', '.join(('*', *_fields(owner)))})"
    for name, node in defined:
        if name in names:
            written = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg)
            for argument in filter(None, written):
                argument.annotation = None
            found[name] = f"({ast.unparse(node.args)})"
    return {"package": package, "version": version, "functions": found}


def _fields(owner: ast.ClassDef) -> list[str]:
    fields = [node for node in owner.body if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node)]
    return [ast.unparse(node.target) + (f"={ast.unparse(node.value)}" if node.value else "") for node in fields]


def main(arguments: list[str]) -> None:
    match arguments:
        case ["ops", wheel, *names]:
            found = ops_of(Path(wheel), names)
        case ["functions", package, version, source, *names]:
            found = functions_of(package, version, Path(source), names)
        case _:
            raise SystemExit(__doc__)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
