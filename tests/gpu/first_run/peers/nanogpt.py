"""A GPT-2 or Llama in plain PyTorch with `torch.compile`, BF16 autocast, fused AdamW, flash attention; as nanoGPT."""

import argparse

import torch
from measured import measure_steps, read_arguments
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and feed-forward layer behind LayerNorms."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.projection = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, hidden_BSH: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        batch, length, width = hidden_BSH.shape
        parts = self.qkv(self.norm_1(hidden_BSH)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden_BSH = hidden_BSH + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        inner = functional.gelu(self.up(self.norm_2(hidden_BSH)), approximate="tanh")
        return hidden_BSH + self.down(inner)


def rotated(values: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head by the angles of its position."""
    first, second = values.chunk(2, dim=-1)
    return values * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaBlock(nn.Module):
    """Attention with rotary positions and a gated feed-forward layer, behind RMSNorms."""

    def __init__(self, hidden: int, heads: int, ffn: int, seq_length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.projection = nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 2 * ffn, bias=False), nn.Linear(ffn, hidden, bias=False)
        rates = 10_000.0 ** -(torch.arange(0, hidden // heads, 2) / (hidden // heads))
        angles = torch.outer(torch.arange(seq_length), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, hidden_BSH: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        batch, length, width = hidden_BSH.shape
        parts = self.qkv(self.norm_1(hidden_BSH)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        cos, sin = self.cos.to(query.dtype), self.sin.to(query.dtype)
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden_BSH = hidden_BSH + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        gate, inner = self.up(self.norm_2(hidden_BSH)).chunk(2, dim=-1)
        return hidden_BSH + self.down(functional.silu(gate) * inner)


class PlainGpt(nn.Module):
    """GPT-2 whose output layer is the embedding, or with `ffn` a Llama, whose output layer is its own."""

    def __init__(self, shape: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        llama = shape.ffn is not None
        self.positions = None if llama else nn.Embedding(shape.seq_length, shape.hidden)
        sizes = shape.hidden, shape.heads
        self.blocks = nn.ModuleList(
            LlamaBlock(*sizes, shape.ffn, shape.seq_length) if llama else Block(*sizes)
            for _ in range(shape.layers)
        )
        self.norm = nn.RMSNorm(shape.hidden, eps=1e-5) if llama else nn.LayerNorm(shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.vocab_size, bias=False)
        if not llama:
            self.output.weight = self.tokens.weight
        for each in self.modules():
            if isinstance(each, nn.Linear | nn.Embedding):
                nn.init.normal_(each.weight, std=0.02)
            if isinstance(each, nn.Linear) and each.bias is not None:
                nn.init.zeros_(each.bias)

    def forward(self, tokens_BS: Tensor, labels_BS: Tensor) -> Tensor:
        """Return the mean loss."""
        hidden = self.tokens(tokens_BS)
        if self.positions is not None:
            hidden = hidden + self.positions(torch.arange(tokens_BS.shape[1], device=tokens_BS.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.output(self.norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), labels_BS.flatten())


def main() -> None:
    """Measure the requested steps on tokens that count up, from a random one."""
    shape = read_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1234)
    torch.set_float32_matmul_precision("high")
    model = PlainGpt(shape).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=device == "cuda"
    )
    # on a CPU the compilation of kernels would take longer than the steps
    compiled = torch.compile(model, backend="inductor" if device == "cuda" else "eager")
    microbatches = shape.global_batch_size // shape.micro_batch_size

    def step() -> Tensor:
        total = torch.zeros((), device=device)
        for _ in range(microbatches):
            start = torch.randint(shape.vocab_size, (shape.micro_batch_size, 1), device=device)
            line = (start + torch.arange(shape.seq_length + 1, device=device)) % shape.vocab_size
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = compiled(line[:, :-1].contiguous(), line[:, 1:].contiguous())
            (loss / microbatches).backward()
            total += loss.detach() / microbatches
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    measure_steps(shape, step)


if __name__ == "__main__":
    main()
