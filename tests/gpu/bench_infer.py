#!/usr/bin/env python3
"""make bench-infer-gpu: gpt2-infer on one NVIDIA GPU, bf16, greedy, against its bars, all in one run.

Decoding: prompts of 8 tokens, 128 new tokens each, B side by side. The bars are on the steady rate: new tokens over
seconds of the difference between a run of 10 B prompts and one of 2 B, which leaves loading and first passes out. Scoring: texts of 1024 tokens; its products' FLOPs beside one large product on the same GPU
where PyTorch is present. Hugging Face generate on the same weights beside it where transformers is present.
    MODELS="124M XL" BATCHES="1 64 256" PEER=1 BUILD=build  (DEVICE=cpu MODELS=nano BATCHES="1 8" tries the script)
Prints a table, writes bench-infer.json, and exits 1 when a bar is missed."""
import json, os, subprocess, sys, tempfile, time

SHAPES = {"nano": (2, 2, 128, 128, 50257), "124M": (12, 12, 768, 1024, 50257), "XL": (48, 25, 1600, 1024, 50257)}
BARS = {("124M", 1): 3000, ("124M", 256): 300000, ("XL", 1): 800, ("XL", 256): 40000}
SCORING_BAR = 0.60
DEVICE = os.environ.get("DEVICE", "cuda")
MODELS = os.environ.get("MODELS", "124M XL").split()
BATCHES = [int(b) for b in os.environ.get("BATCHES", "1 64 256").split()]
PEER = os.environ.get("PEER", "1") == "1"
BUILD = os.environ.get("BUILD", "build")
rows, missed = [], 0


def report(model, what, value, unit, bar=None, note=""):
    global missed
    verdict = "" if bar is None else "PASS" if value >= bar else "FAIL"
    missed += verdict == "FAIL"
    rows.append({"model": model, "what": what, "value": value, "unit": unit, "bar": bar, "note": note})
    bar_text = "" if bar is None else f"bar {bar:,.6g}"
    print(f"{model:5} {what:34} {value:12,.1f} {unit:9} {bar_text:14} {verdict:5} {note}", flush=True)


def infer(task, folder, work, records, *options):
    stats = os.path.join(work, "stats.json")
    with open(os.path.join(work, "records.jsonl"), "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in records)
    subprocess.run(["gpt2-infer", task, "-q", "--device", DEVICE, "--weights", "bf16", "--model", folder, "--stats", stats,
                    *options, f.name], check=True, stdout=subprocess.DEVNULL)
    with open(stats) as f:
        return json.load(f)


def decoding(model, folder, work, batch):
    new = min(128, SHAPES[model][3] // 2)
    prompts = [{"prompt_ids": [(r * 7919 + i * 31) % 50000 for i in range(8)]} for r in range(10 * batch)]
    runs = [infer("generate", folder, work, prompts[:n * batch], "--sequences", str(batch), "--max-new-tokens", str(new),
                  "--ignore-eos", "--temperature", "0") for n in (2, 10)]
    more = runs[1]["new_tokens"] - runs[0]["new_tokens"]
    passes = runs[1]["passes"] - runs[0]["passes"]
    seconds = max(runs[1]["seconds"] - runs[0]["seconds"], 1e-9)
    report(model, f"decoding, batch {batch}", more / seconds, "tokens/s", BARS.get((model, batch)) if DEVICE == "cuda" else None,
           f"{1e6 * seconds / passes:.0f} us a pass; whole command {runs[1]['new_tokens'] / runs[1]['seconds']:,.0f} tokens/s, "
           f"loaded in {runs[1]['load_seconds']:.2f} s")


def torch_rate():
    """TFLOP/s of a large bf16 product, the GPU's ceiling; 0 without PyTorch."""
    try:
        import torch
        if DEVICE != "cuda" or not torch.cuda.is_available():
            return 0.0
    except ImportError:
        return 0.0
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    best = 1e9
    for _ in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end))
    return 2 * 8192**3 / best / 1e9


def scoring(model, folder, work, ceiling):
    layers, _, channels, context, vocab = SHAPES[model]
    texts = 4096 if model == "124M" else 256 if model == "XL" else 8
    few, many = ([{"ids": [(r * 31 + i * 7919) % 50000 for i in range(context)]} for r in range(n)] for n in (texts // 4, texts))
    runs = [infer("score", folder, work, records) for records in (few, many)]
    rate = (runs[1]["prompt_tokens"] - runs[0]["prompt_tokens"]) / max(runs[1]["seconds"] - runs[0]["seconds"], 1e-9)
    flops = 2 * (12 * layers * channels**2 + vocab * channels) + 2 * layers * context * channels
    tera = rate * flops / 1e12
    if ceiling:
        report(model, "scoring, of the GEMM peak", 100 * tera / ceiling, "%", 100 * SCORING_BAR,
               f"{rate:,.0f} tokens/s, {tera:.0f} of {ceiling:.0f} TFLOP/s")
    else:
        report(model, "scoring", rate, "tokens/s", None, f"{tera:.2f} TFLOP/s")


def peer(model, folder, batch):
    try:
        import torch
        from transformers import GPT2LMHeadModel
    except ImportError:
        print("Hugging Face: transformers is not installed: no comparison")
        return
    hf = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16).eval().to(DEVICE)
    ids = torch.tensor([[(r * 7919 + i * 31) % 50000 for i in range(8)] for r in range(batch)], device=DEVICE)
    with torch.no_grad():
        for n in (4, 64):
            began = time.time()
            hf.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            seconds = time.time() - began
    report(model, f"Hugging Face generate, batch {batch}", batch * 64 / seconds, "tokens/s")


def main():
    ceiling = torch_rate()
    with tempfile.TemporaryDirectory() as work:
        for model in MODELS:
            folder = os.path.join(work, model)
            subprocess.run([f"{BUILD}/gpu/make_model", folder, *map(str, SHAPES[model])], check=True)
            for batch in BATCHES:
                decoding(model, folder, work, batch)
            scoring(model, folder, work, ceiling)
            if PEER:
                peer(model, folder, BATCHES[0])
    with open("bench-infer.json", "w") as f:
        json.dump({"device": DEVICE, "rows": rows, "missed": missed}, f, indent=1)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
