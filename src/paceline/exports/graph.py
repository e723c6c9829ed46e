"""How is an ONNX graph put together? Node by node; results are named automatically.

Only operators of opset 17 are used, which runtimes have had since 2022.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.errors import UsageError
from paceline.version import VERSION

OPSET, IR_VERSION = 17, 8


def import_onnx() -> Any:
    """The package `onnx`, or the error that it is missing."""
    try:
        import onnx
    except ImportError:
        raise UsageError(
            "ONNX needs the package `onnx`, which is not installed", "pip install 'paceline[onnx]'"
        ) from None
    return onnx


class Graph:
    """A graph under construction."""

    def __init__(self, name: str) -> None:
        self._onnx = import_onnx()
        self._name = name
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._count = 0

    def input(self, name: str, dtype: Any, shape: tuple[str | int, ...]) -> str:
        """An input; dimensions with names may have any size."""
        self._inputs.append(self._value(name, dtype, shape))
        return name

    def constant(self, values: Any, dtype: Any = np.float32, name: str = "") -> str:
        """Values that are part of the graph."""
        array = np.ascontiguousarray(np.asarray(values, dtype))
        name = name or self._new_name()
        self._constants.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """The result of an operator."""
        result = self._new_name()
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, [result], **attributes))
        return result

    def sum(self, of: str, axis: int) -> str:
        return self.node("ReduceSum", of, self.constant([axis], np.int64), keepdims=0)

    def with_axis(self, of: str, axis: int) -> str:
        return self.node("Unsqueeze", of, self.constant([axis], np.int64))

    def cast(self, of: str, dtype: Any) -> str:
        return self.node("Cast", of, to=self._type(dtype))

    def finish(self, result: str, name: str, shape: tuple[str | int, ...]) -> Any:
        """The model whose output is `result`, under this name."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [result], [name]))
        output = self._value(name, np.float32, shape)
        graph = self._onnx.helper.make_graph(self._nodes, self._name, self._inputs, [output], self._constants)
        opset = self._onnx.helper.make_opsetid("", OPSET)
        return self._onnx.helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="paceline", producer_version=VERSION
        )

    def _value(self, name: str, dtype: Any, shape: tuple[str | int, ...]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._type(dtype), shape)

    def _type(self, dtype: Any) -> int:
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _new_name(self) -> str:
        self._count += 1
        return f"_{self._count}"
