"""PyTorch beside sdp-train: GPT-2 124M fp32 on the CPU, median tokens/s of a whole AdamW step.
usage: train_torch.py BATCH TIME STEPS"""
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

batch, length, steps = (int(a) for a in sys.argv[1:4])
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
rates = []
for _ in range(steps):
    ids = torch.randint(0, 50257, (batch, length))
    began = time.perf_counter()
    model(ids, labels=ids).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    rates.append(batch * length / (time.perf_counter() - began))
print(f"{sorted(rates[1:])[(len(rates) - 1) // 2]:.0f}")
