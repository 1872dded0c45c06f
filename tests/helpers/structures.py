"""Networks whose parts go in whole structures, in the shapes in which they are published, only smaller."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, HIDDEN = 12, 3, 20


class FeedForward(nn.Module):
    """Feed-forward units of a transformer, with a gate or without."""

    def __init__(self, gated: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, width)
        self.gate = nn.Linear(width, HIDDEN) if gated else None
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.up(x)) if self.gate is None else self.up(x) * F.silu(self.gate(x))
        return self.down(self.dropout(hidden))


class TorchAttention(nn.Module):
    """nn.MultiheadAttention as it is used for self-attention."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


class Projected(nn.Module):
    """Attention by hand, with three projections."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size = HEADS, WIDTH // HEADS
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, time = x.shape[0], x.shape[1]
        q, k, v = (layer(x).view(batch, time, self.heads, self.size) for layer in (self.q, self.k, self.v))
        scores = q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / self.size**0.5
        result = torch.matmul(scores.softmax(-1), v.transpose(1, 2))
        return self.out(result.transpose(1, 2).reshape(batch, time, self.heads * self.size))


class Fused(nn.Module):
    """Attention by hand as in ViT: one projection, and torch's function."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size = HEADS, WIDTH // HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, time, 3, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        result = F.scaled_dot_product_attention(q, k, v)
        return self.out(result.transpose(1, 2).reshape(batch, time, width))


class Chunked(nn.Module):
    """Attention by hand as in nanoGPT: chunks, and a causal mask in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(16, 16).tril().bool()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.size()
        q, k, v = self.qkv(x).split(WIDTH, dim=2)
        q, k, v = (part.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / 2.0)
        scores = scores.masked_fill(self.mask[:, :, :time, :time] == 0, float("-inf"))
        result = scores.softmax(dim=-1) @ v
        return self.out(result.transpose(1, 2).contiguous().view(batch, time, width))


class Summed(nn.Module):
    """Attention by hand with einsum, and rotated halves."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.angle = nn.Parameter(torch.tensor(0.3), requires_grad=False)

    def rotate(self, x: Tensor) -> Tensor:
        turned = torch.cat((-x[..., 2:], x[..., :2]), dim=-1)
        return x * 0.8 + turned * self.angle

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, WIDTH // HEADS)) for layer in (self.q, self.k, self.v))
        weights = torch.einsum("bthd,bshd->bhts", self.rotate(q), self.rotate(k)).softmax(-1)
        return self.out(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2))


class Grouped(nn.Module):
    """Attention whose keys and values are shared by groups of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.pairs = 6, 3
        self.q, self.kv, self.out = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, time = x.shape[0], x.shape[1]
        q = self.q(x).view(batch, time, self.heads, 4).transpose(1, 2)
        k, v = (part.reshape(batch, time, self.pairs, 4).transpose(1, 2) for part in self.kv(x).chunk(2, dim=-1))
        k, v = (
            part[:, :, None].expand(batch, self.pairs, 2, time, 4).reshape(batch, self.heads, time, 4)
            for part in (k, v)
        )
        result = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(result.transpose(1, 2).reshape(batch, time, 4 * self.heads))


class Transformer(nn.Module):
    """A block with residual sums and normalisation before each part, and a head for the mean of the tokens."""

    def __init__(self, attention: nn.Module, gated: bool = False) -> None:
        super().__init__()
        self.embed, self.attention, self.feed = nn.Linear(5, WIDTH), attention, FeedForward(gated)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attention(self.norm1(x))
        x = x + self.feed(self.norm2(x))
        return self.head(self.norm3(x).mean(1))


ATTENTIONS = {
    "torch": TorchAttention,
    "torch, without biases": lambda: TorchAttention(bias=False),
    "projected": Projected,
    "fused": Fused,
    "chunked": Chunked,
    "summed": Summed,
    "grouped": Grouped,
}
"""Attentions of three heads, or of three groups of heads."""


class Bottleneck(nn.Module):
    """A block of ResNeXt: the inner convolution is in groups."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.conv2, self.bn2 = nn.Conv2d(12, 12, 3, padding=1, groups=groups, bias=False), nn.BatchNorm2d(12)
        self.conv3, self.bn3 = nn.Conv2d(12, width, 1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(x + self.bn3(self.conv3(y)))


def resnext(groups: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), Bottleneck(8, groups), Bottleneck(8, groups),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


class InvertedResidual(nn.Module):
    """A block of MobileNetV3 and EfficientNet: widen, a depthwise convolution, squeeze and excite, narrow."""

    def __init__(self, inputs: int, hidden: int, outputs: int, activation: type[nn.Module], stride: int = 1) -> None:
        super().__init__()
        self.widen = nn.Sequential(nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), activation())
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), activation()
        )
        self.squeeze, self.excite = nn.Conv2d(hidden, 4, 1), nn.Conv2d(4, hidden, 1)
        self.scale = nn.Hardsigmoid() if activation is nn.Hardswish else nn.Sigmoid()
        self.narrow = nn.Sequential(nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.widen(x))
        y = y * self.scale(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = self.narrow(y)
        return x + y if self.shortcut else y


def mobilenet(activation: type[nn.Module] = nn.Hardswish) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), activation(),
        InvertedResidual(8, 16, 8, activation), InvertedResidual(8, 20, 10, activation, 2),
        InvertedResidual(10, 24, 10, activation),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(10, 14), activation(), nn.Dropout(0.2), nn.Linear(14, 3),
    )  # fmt: skip


class BlockA(nn.Module):
    """A block of the ResNets for CIFAR-10 whose shortcut has no parameters (option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.extra = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.extra:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra), "constant", 0)
        return F.relu(x + y)


class ResNetA(nn.Module):
    """A residual network for small images, with shortcuts that stride and pad."""

    def __init__(self, widths: tuple[int, int, int] = (8, 16, 32), blocks: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0])
        stages, inputs = [], widths[0]
        for stage, outputs in enumerate(widths):
            for block in range(blocks):
                stages.append(BlockA(inputs, outputs, 2 if stage and not block else 1))
                inputs = outputs
        self.blocks, self.fc = nn.Sequential(*stages), nn.Linear(inputs, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))
