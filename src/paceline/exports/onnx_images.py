"""Classifiers of images as ONNX graphs: bytes [rows, height, width, channels] in, a probability per class out."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.data.images.crops import Crops
from paceline.exports.graph import Graph, import_onnx
from paceline.imports import import_from
from paceline.models.images import ImageSettings
from paceline.models.trained import TrainedModel
from paceline.models.trained_inputs import ImageInput


def softmax(model: TrainedModel) -> Any:
    """Softmax regression of the pixels in the middle."""
    settings = settings_of(model)
    height, width, channels = Crops(settings.images, settings.shape, 0).shape
    top, left = (settings.shape[0] - height) // 2, (settings.shape[1] - width) // 2
    graph = Graph("softmax")
    images = graph.input("images", np.uint8, ("rows", *settings.shape))
    starts, stops, axes = (graph.constant(at, np.int64) for at in ((top, left), (top + height, left + width), (1, 2)))
    cut = graph.node("Slice", images, starts, stops, axes)
    flat = graph.node("Reshape", cut, graph.constant([-1, height * width * channels], np.int64))
    pixels = graph.node("Div", graph.cast(flat, np.float32), graph.constant(255))
    weight = graph.constant(model.tensors["weight"], name="weight")
    score = graph.node("Add", graph.node("MatMul", pixels, weight), graph.constant(model.tensors["bias"], name="bias"))
    return graph.finish(graph.node("Softmax", score, axis=-1), "probability", ("rows", settings.classes))


def module(model: TrainedModel) -> Any:
    """A PyTorch module, traced by PyTorch itself."""
    onnx = import_onnx()
    traced = import_from("paceline.torch.traced:traced")(model.entry, settings_of(model), model.tensors)
    return onnx.load_model_from_string(traced)


def settings_of(model: TrainedModel) -> ImageSettings:
    """Which images a model takes."""
    assert isinstance(model.input, ImageInput)
    return model.input.settings
