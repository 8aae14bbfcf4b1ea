"""PyTorch FSDP2 beside sdp-train on several GPUs: bench_torch's GPT-2, every block and the whole model sharded over all
ranks, bf16 parameters with fp32 reductions, fused AdamW, clip 1.0; prints the median tokens a second of all ranks.
usage: python -m torch.distributed.run --nproc-per-node W bench_fsdp2.py DEVICE LAYERS HEADS WIDTH TIME BATCH STEPS
       CHECKPOINTING VOCAB"""
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard

from bench_torch import Block, Model

device, (layers, heads, width, tokens, batch, steps, saver, vocab) = sys.argv[1], map(int, sys.argv[2:10])
dist.init_process_group("nccl" if device == "cuda" else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
if device == "cuda":
    torch.cuda.set_device(rank)
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
torch.manual_seed(0)
torch.set_float32_matmul_precision("high")


class Saved(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


with torch.device("meta"):
    model = Model(layers, heads, width, vocab, tokens, Saved if saver else Block)
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model.blocks:
    if device == "cuda":
        block.compile()
    fully_shard(block, mp_policy=policy)
fully_shard(model, mp_policy=policy)
model.to_empty(device=device)
for p in model.parameters():  # each rank draws its own part; the speed does not depend on the values
    nn.init.normal_(p, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
times = []
for _ in range(steps):
    ids = torch.randint(0, vocab, (batch, tokens), device=device)
    wait()
    dist.barrier()
    began = time.perf_counter()
    model(ids).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    wait()
    times.append(time.perf_counter() - began)
median = sorted(times[2:])[(len(times) - 2) // 2]
if rank == 0:
    print(world * batch * tokens / median, flush=True)
dist.destroy_process_group()
