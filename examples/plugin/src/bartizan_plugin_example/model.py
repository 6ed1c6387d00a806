"""A model: a class or function (n_classes, image, norm) that returns a torch module."""

from torch import nn


class TwoLayers(nn.Sequential):
    """A perceptron with one hidden layer of 32 units; it has no normalisation."""

    def __init__(self, n_classes, image, norm):
        channels, height, width = image
        inputs = channels * height * width
        super().__init__(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, n_classes))
