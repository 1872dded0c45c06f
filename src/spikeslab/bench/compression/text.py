"""Small networks over characters, and the rows of a text that they read."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHARACTERS, CONTEXT = 65, 64
"""Characters of the text, and of a row."""
MASKED, IGNORED = 0.15, -100
"""Share of the characters that are masked, and the target of the others, which ``F.cross_entropy`` leaves out."""


class Block(nn.Module):
    """Block of a transformer: causal attention and a perceptron, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs of the shape of the inputs, (rows, positions, width)."""
        rows, positions, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, positions, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        later = torch.ones(positions, positions, dtype=torch.bool, device=x.device).triu(1)
        # Not F.scaled_dot_product_attention, which torch.vmap runs sample by sample with a warning.
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(later, -torch.inf)
        mixed = scores.softmax(dim=-1) @ v
        x = x + self.mix(mixed.transpose(1, 2).reshape(rows, positions, width))
        added: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + added


class CharTransformer(nn.Module):
    """Causal transformer over characters.

    Logits have the shape (rows, characters, positions), as ``F.cross_entropy`` and ``compress`` take them.
    """

    def __init__(
        self, characters: int = CHARACTERS, layers: int = 2, width: int = 96, heads: int = 4, context: int = CONTEXT
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(characters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next character at each position."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.transpose(1, 2)


class CharEncoder(nn.Module):
    """Bidirectional encoder like BERT, of torch's own layers, that guesses masked characters.

    The mask is the number behind those of the characters. Logits have the shape (rows, characters, positions).
    """

    def __init__(
        self, characters: int = CHARACTERS, layers: int = 2, width: int = 96, heads: int = 4, context: int = CONTEXT
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(characters + 1, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the character at each position."""
        logits: Tensor = self.head(self.encoder(self.token(tokens) + self.position.weight[: tokens.shape[1]]))
        return logits.transpose(1, 2)


class CharLSTM(nn.Module):
    """Recurrent network over characters, with logits of the shape (rows, characters, positions)."""

    def __init__(self, characters: int = CHARACTERS, layers: int = 2, width: int = 128) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of the next character at each position."""
        logits: Tensor = self.head(self.lstm(self.token(tokens))[0])
        return logits.transpose(1, 2)


def read_tokens(path: Path) -> Tensor:
    """Return the numbers of the characters of a text, in the order of the characters."""
    text = path.read_text()
    index = {character: number for number, character in enumerate(sorted(set(text)))}
    return torch.tensor([index[character] for character in text])


def next_characters(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows of characters, and the character behind each of them."""
    return tokens[:-1].unfold(0, CONTEXT, CONTEXT), tokens[1:].unfold(0, CONTEXT, CONTEXT)


def mask_characters(rows: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows with some characters masked, and these characters as targets; the other targets are ignored.

    >>> x, y = mask_characters(torch.arange(8).view(1, 8), seed=1)
    >>> x.tolist(), y.tolist()
    ([[0, 1, 2, 3, 65, 5, 6, 7]], [[-100, -100, -100, -100, 4, -100, -100, -100]])
    """
    masked = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed)) < MASKED
    return rows.masked_fill(masked, CHARACTERS), rows.masked_fill(~masked, IGNORED)
