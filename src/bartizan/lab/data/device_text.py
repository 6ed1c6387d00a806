"""Windows of text on the device, with the interface of `OnDevice`."""

from __future__ import annotations

from bartizan.lab.data.addresses import Texts
from bartizan.lab.torch_import import Tensor, torch


class TextOnDevice:
    """Windows as one uint8 tensor: a batch has all but their last character, its labels all but their first.

    >>> from bartizan.lab.data.addresses import encoded
    >>> text = TextOnDevice(Texts.cut([encoded("We the people " * 10)]))
    >>> text.batch(torch.tensor([[0, 1]])).shape, text.labels.shape
    (torch.Size([1, 2, 64]), torch.Size([2, 64]))
    """

    def __init__(self, text: Texts, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.tokens = torch.tensor(text.tokens, dtype=torch.uint8, device=self.device)
        self.labels = self.tokens[:, 1:].long()
        self.shape = (self.labels.shape[1],)

    def batch(self, indices: Tensor, augment: torch.Generator | None = None) -> Tensor:
        """Return characters, (*indices.shape, context); text is not augmented."""
        return self.tokens[indices.to(self.device)][..., :-1].long()

    def __len__(self) -> int:
        return len(self.labels)
