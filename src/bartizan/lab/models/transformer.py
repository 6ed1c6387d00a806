"""A small transformer that predicts the next character, built from its configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

from bartizan.lab.torch_import import Tensor, functional, nn, torch


@dataclass(frozen=True)
class Config:
    """The sizes of the network; the defaults suit two cores."""

    vocabulary: int
    context: int
    width: int = 64
    heads: int = 4
    depth: int = 2


class Transformer(nn.Module):
    """A decoder with norms before each part, as GPT-2: (B, context) characters to scores (B, vocabulary, context).

    >>> model = Transformer(Config(vocabulary=96, context=64))
    >>> model(torch.zeros(3, 64, dtype=torch.long)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([3, 96, 64]), 116480)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.characters = nn.Parameter(torch.randn(config.vocabulary, config.width) * 0.02)
        self.positions = nn.Parameter(torch.randn(config.context, config.width) * 0.02)
        self.blocks = nn.ModuleList([TransformerBlock(config) for _ in range(config.depth)])
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        # Not by an index: the gradient of a lookup is a scattered sum, which no GPU repeats to the bit.
        chosen = tokens[..., None] == torch.arange(self.config.vocabulary, device=tokens.device)
        x = chosen.to(self.characters.dtype) @ self.characters + self.positions[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x)).transpose(-1, -2)
        return scores


class TransformerBlock(nn.Module):
    """A causal self-attention and a feed-forward layer, each added to its input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.wide, self.narrow = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        L, d = x.shape[-2:]
        parts = self.attention(self.norm1(x)).unflatten(-1, (3, self.heads, d // self.heads))
        q, k, v = parts.movedim(-3, 0).transpose(-3, -2)
        scores = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        later = torch.ones(L, L, dtype=torch.bool, device=x.device).triu(1)
        seen = scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ v
        x = x + self.out(seen.transpose(-3, -2).flatten(-2))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


def transformer(vocabulary: int, text: tuple[int, ...], norm: str) -> nn.Module:
    """Build the network for windows of `text[0]` characters; its norms are layer norms whatever `norm` says."""
    if len(text) != 1:
        raise ValueError(f"transformer predicts text and was given images of {text}: take data.name = 'sotu-mini'.")
    return Transformer(Config(vocabulary, text[0]))
