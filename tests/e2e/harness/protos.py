"""Centrifugo's gRPC services, generated from the .proto files in tests/e2e/protos on first use."""

import functools
import importlib
import pathlib
import sys
import tempfile

PROTOS = pathlib.Path(__file__).parent.parent / "protos"


@functools.cache
def _folder():
    from grpc_tools import protoc

    folder = tempfile.mkdtemp(prefix="steadfast-protos-")
    made = protoc.main(["protoc", f"-I{PROTOS}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                        *map(str, sorted(PROTOS.glob("*.proto")))])
    assert made == 0, "the .proto files cannot be read"
    sys.path.append(folder)
    return folder


def load(name):
    """The messages and the service of a file."""
    _folder()
    return importlib.import_module(f"{name}_pb2"), importlib.import_module(f"{name}_pb2_grpc")
