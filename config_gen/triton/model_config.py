"""Triton's own description of a configuration: the compiled `model_config.proto` that the wheel `tritonclient` carries.

The file is loaded on its own: the package around it would bring gRPC, which a text needs not.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "tritonclient.grpc.model_config_pb2"


@cache
def proto() -> ModuleType:
    """The module with ModelConfig, ModelDynamicBatching and the others."""
    if NAME in sys.modules:
        return sys.modules[NAME]
    package = importlib.util.find_spec("tritonclient")
    assert package is not None and package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("config_gen.model_config_pb2", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(text: str) -> Any:
    """A ModelConfig from the text of a config.pbtxt. Raises google.protobuf.text_format.ParseError."""
    from google.protobuf import text_format

    return text_format.Parse(text, proto().ModelConfig())
