"""A small transformer that predicts the next character; its width and depth suit two cores."""

from __future__ import annotations

from bartizan.lab.torch_import import Tensor, functional, nn, torch

WIDTH, HEADS, DEPTH = 64, 4, 2


class Transformer(nn.Module):
    """A decoder with norms before each part, as GPT-2: (B, context) characters to scores (B, vocabulary, context).

    >>> model = Transformer(vocabulary=96, context=64)
    >>> model(torch.zeros(3, 64, dtype=torch.long)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([3, 96, 64]), 116480)
    """

    def __init__(self, vocabulary: int, context: int) -> None:
        super().__init__()
        self.characters = nn.Parameter(torch.randn(vocabulary, WIDTH) * 0.02)
        self.positions = nn.Parameter(torch.randn(context, WIDTH) * 0.02)
        self.blocks = nn.ModuleList([TransformerBlock(WIDTH) for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        # Not by an index: the gradient of a lookup is a scattered sum, which no GPU repeats to the bit.
        chosen = tokens[..., None] == torch.arange(len(self.characters), device=tokens.device)
        x = chosen.to(self.characters.dtype) @ self.characters + self.positions[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(self.norm(x)).transpose(-1, -2)
        return scores


class TransformerBlock(nn.Module):
    """A causal self-attention and a feed-forward layer, each added to its input."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.wide, self.narrow = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        L, d = x.shape[-2:]
        parts = self.attention(self.norm1(x)).unflatten(-1, (3, HEADS, d // HEADS))
        q, k, v = parts.movedim(-3, 0).transpose(-3, -2)
        scores = q @ k.transpose(-1, -2) / (d // HEADS) ** 0.5
        later = torch.ones(L, L, dtype=torch.bool, device=x.device).triu(1)
        seen = scores.masked_fill(later, float("-inf")).softmax(dim=-1) @ v
        x = x + self.out(seen.transpose(-3, -2).flatten(-2))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


def transformer(vocabulary: int, text: tuple[int, ...], norm: str) -> nn.Module:
    """Build the network for windows of `text[0]` characters; its norms are layer norms whatever `norm` says."""
    if len(text) != 1:
        raise ValueError(f"transformer predicts text and was given images of {text}: take data.name = 'sotu-mini'.")
    return Transformer(vocabulary, text[0])
