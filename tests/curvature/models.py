"""Small networks of the usual kinds."""

import torch
from torch import nn
from torch.nn import functional as F


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 6, bias=False), nn.Tanh(), nn.Linear(6, 3)
    )


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 6, 3, padding="same", bias=False),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


class Attention(nn.Module):
    """Of linear layers."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))


class TorchAttention(nn.Module):
    """Torch's, called as transformers do."""

    def __init__(self, width, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True, **options)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Block(nn.Module):
    def __init__(self, width, attention):
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Decoder with learned positions, which are looked up without batch axis."""

    def __init__(self, attention=Attention, rows="flat", tied=False, vocabulary=9, width=8, context=5):
        super().__init__()
        self.rows = rows
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, attention) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x):
        places = torch.arange(x.shape[1])
        places = {"flat": places, "row": places[None], "all": places.expand(x.shape)}[self.rows]
        h = self.tokens(x) + self.positions(places)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def transformer(**options):
    torch.manual_seed(0)
    return Transformer(**options)


def tokens(examples=6, length=5, vocabulary=9):
    return torch.randint(0, vocabulary, (examples, length), generator=torch.Generator().manual_seed(2))


def inputs(*shape, seed=2):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class First(nn.Module):
    """The first output of a module with several."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)[0]
