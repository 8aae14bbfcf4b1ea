"""PyTorch beside sdp-train on one GPU: GPT-2 with scaled_dot_product_attention, bf16 autocast, fused AdamW,
clip 1.0, no dropout; the median of whole optimizer steps.
usage: bench_torch.py MODEL BATCH ACCUMULATION STEPS compile|eager"""
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

SHAPES = {"gpt2-small": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280),
          "gpt2-xl": (48, 25, 1600)}
VOCAB, TIME = 50304, 1024


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fcproj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.fcproj(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, layers, heads, width, vocab=VOCAB, context=TIME, block=Block):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits[:, :-1].reshape(-1, self.wte.num_embeddings), ids[:, 1:].reshape(-1))


def main():
    name, batch, accumulation, steps, mode = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = Model(*SHAPES[name]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    step_model = torch.compile(model) if mode == "compile" else model
    times = []
    for _ in range(steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(accumulation):
            ids = torch.randint(0, 50257, (batch, TIME), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = step_model(ids)
            (loss / accumulation).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    median = sorted(times[2:])[(len(times) - 2) // 2]
    tokens = batch * accumulation * TIME
    layers, _, width = SHAPES[name]
    parameters = sum(p.numel() for p in model.parameters()) - TIME * width
    flops = (6 * parameters + 12 * layers * width * TIME) * tokens / median / 1e12
    print(f"{name:<12} PyTorch {mode:<14} {tokens / median:12.0f} {median * 1e3:10.1f} {flops:10.1f} "
          f"{torch.cuda.max_memory_allocated() / 2**30:8.1f}", flush=True)


if __name__ == "__main__":
    main()
