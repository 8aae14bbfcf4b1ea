"""make bench-multi: sharding on 1, 2, 4 and 8 GPUs of one host over NCCL, NVLink multicast off. Prints a table, writes
JSON, and ends with 1 when a bar is missed, 77 when there is nothing to run on.

Environment:  WORLDS="1 2 4 8" (those there are)  MODELS="124m xl 7b"  PARTS="invariance scaling 30b faults"
  STEPS=8  ACCUMULATION=1  OUT=bench-multi.json  WORK=folder for shards and checkpoints  PYTHON=with torch for FSDP2
  BARS="scaling.xl.efficiency=0.98 ..." replaces bars by name (the names are printed)
  DEVICE=cpu runs the same over MPI on processors, for trying the script: MODELS=nano WORLDS="1 2"."""
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENV = os.environ
ENV.setdefault("SDP_GPT2_SHARE", os.path.join(ROOT, "share"))
DEVICE, STEPS = ENV.get("DEVICE", "cuda"), int(ENV.get("STEPS", "8"))
NODROP = "--resid-pdrop 0 --embd-pdrop 0 --attn-pdrop 0"
# flags, tokens a sample, micro-batch, layers heads width for the peer, activation checkpointing
MODELS = {
    "124m": ("--model gpt2-small --bf16 1", 1024, 64, (12, 12, 768), False),
    "xl": ("--model gpt2-xl --bf16 1", 1024, 16, (48, 25, 1600), False),
    "7b": ("--model gpt2-xl --num-layers 32 --hidden-width 4096 --num-heads 32 --max-context-width 2048 --bf16 1",
           2048, 4, (32, 32, 4096), True),
    "30b": ("--model smp-gpt2-30b --bf16 1", 2048, 4, (48, 64, 7168), True),
    "nano": ("--model gpt2-nano --vocab-size 512", 64, 2, (2, 4, 64), False),
}
BARS = {  # what a bar is held against: value >= bar for min, value <= bar for max
    "invariance.error": ("max", 1e-5 if DEVICE == "cpu" else 1e-4),
    "scaling.124m.efficiency": ("min", 0.97),  # S = 1, most GPUs
    "scaling.xl.efficiency": ("min", 0.98),  # S = W = 8
    "scaling.fsdp2": ("min", 1.2),  # our speed over FSDP2's, S = W
    "30b.memory": ("max", 0.02),  # relative distance from the plan
    "30b.peak": ("min", 0.5),  # of the card's dense bf16 peak
    "faults.kill_s": ("max", 60.0),
    "faults.stall_ms": ("max", 1000.0),
}
for pair in ENV.get("BARS", "").split():
    key, _, text = pair.partition("=")
    BARS[key] = (BARS[key][0] if key in BARS else "min", float(text))
rows, verdicts = [], []


def say(*cells):
    print("  ".join(str(c).ljust(w) for c, w in zip(cells, (12, 30, 60))), flush=True)


def record(part, name, ok=None, **values):
    rows.append({"part": part, "name": name, **values})
    shown = " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in values.items())
    say(part, name, shown + ("" if ok is None else "  PASS" if ok else "  FAIL"))
    if ok is not None:
        verdicts.append((f"{part} {name}", ok))


def held(bar, value):
    kind, limit = BARS[bar]
    return value >= limit if kind == "min" else value <= limit


def gpus():
    try:
        text = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in text.splitlines())


def command(world, options):
    comm = "nccl" if DEVICE == "cuda" else "mpi" if world > 1 else "self"
    run = [] if world == 1 else ["mpirun", "-n", str(world)]
    return run + ["sdp-train", "--quiet", "--device", DEVICE, "--comm", comm] + options.split()


def start(world, options, err):
    env = {**ENV, "NCCL_NVLS_ENABLE": "0", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
           "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}
    return subprocess.Popen(command(world, options), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=err, text=True)


def train(world, options, metrics=None):
    """Runs to the end; (rows of the metrics file, stdout). A failure ends the benchmark."""
    with tempfile.TemporaryFile("w+") as err:
        p = start(world, options + (f" --metrics {metrics}" if metrics else ""), err)
        try:
            out, _ = p.communicate(timeout=float(ENV.get("RUN_TIMEOUT", "1800")))
        except subprocess.TimeoutExpired:
            p.terminate()
            raise
        err.seek(0)
        if p.returncode != 0:
            raise RuntimeError(" ".join(command(world, options)) + f": status {p.returncode}\n{err.read()}")
    return (read(metrics) if metrics else []), out


def read(path):
    return [json.loads(line) for line in open(path)] if os.path.exists(path) else []


def median(lines, key):
    values = [r[key] for r in lines if "loss" in r][2:]
    return statistics.median(values)


def shards(work, tokens, vocab, samples):
    out = os.path.join(work, f"shards-{tokens}-{vocab}")
    if not os.path.exists(out):
        draw = random.Random(1)
        text = "".join(json.dumps([draw.randrange(vocab) for _ in range(tokens)]) + "\n" for _ in range(samples))
        ids = subprocess.run(["gpt2-tokenize", "--quiet", "--input-format", "ids", "--vocab-size", str(vocab)],
                             input=text.encode(), stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["shard-pack", "--quiet", "--block-size", str(tokens), "-o", out], input=ids, check=True)
    return out


def model_options(name, work, world):
    flags, tokens, batch, _, saver = MODELS[name]
    vocab = 512 if name == "nano" else 50257
    options = f"{flags} {NODROP} --training-dir {shards(work, tokens, vocab, batch * world_max)} --epochs 1000000"
    return options + f" --train-batch-size {batch}" + (" --activation-checkpointing 1" if saver else "")


def degrees(world):
    return sorted({d for d in (1, 2, world) if world % d == 0})


def invariance(work):
    data = shards(work, 64, 512, 64)
    base = (f"--model gpt2-nano --num-layers 4 --vocab-size 512 --training-dir {data} --global-batch-size 16 --max-steps 6 "
            "--lr 1e-3 --resid-pdrop 0.1 --embd-pdrop 0.1 --attn-pdrop 0.1")

    def curve(lines):
        return [(r["step"], r["loss"], r["grad_norm"], r["samples_digest"]) for r in lines if "loss" in r]

    def compare(name, got):
        same = len(got) == len(want) and all(a[0] == b[0] and a[3] == b[3] for a, b in zip(got, want))
        error = max([abs(x - y) / abs(y) for a, b in zip(got, want) for x, y in zip(a[1:3], b[1:3])], default=1.0)
        record("invariance", name, same and held("invariance.error", error), error=error, same_samples=same)

    want = curve(train(1, base + " --train-batch-size 16", f"{work}/base.jsonl")[0])
    savers = {"": "", "checkpointing": "--activation-checkpointing 1",
              "offload": "--activation-checkpointing 1 --offload-activations 1 --activation-loading-horizon 1"}
    for world in worlds:
        for degree in [d for d in range(1, world + 1) if world % d == 0]:
            for saver, flags in savers.items():
                for batch in sorted({1, max(1, 16 // world)}):  # with accumulation, and without where it divides
                    path = f"{work}/i.jsonl"
                    got = train(world, f"{base} --train-batch-size {batch} --sharded-data-parallel-degree {degree} {flags}", path)
                    compare(f"W={world} S={degree} b={batch} {saver}".strip(), curve(got[0]))
    for first, second in zip(worlds, worlds[1:] + worlds[:1]):
        shutil.rmtree(f"{work}/ck", ignore_errors=True)
        path = f"{work}/r.jsonl"
        again = f"{base} --train-batch-size 1 --checkpoint-dir {work}/ck --checkpoint-freq 3 --lr-decay-iters 6"
        train(first, again.replace("--max-steps 6", "--max-steps 3"), path)
        compare(f"resume W={first}->{second}", curve(train(second, again + " --load-partial 1", path)[0]))


def fsdp2(name, world):
    """Tokens a second of PyTorch FSDP2 on all GPUs, or None without it."""
    python = ENV.get("PYTHON", "python3")
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        return None
    _, tokens, batch, shape, saver = MODELS[name]
    p = subprocess.run([python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}",
                        f"{ROOT}/tests/gpu/bench_fsdp2.py", DEVICE, *map(str, shape), str(tokens), str(batch), str(STEPS),
                        str(int(saver)), "512" if name == "nano" else "50304"],
                       env={**ENV, "NCCL_NVLS_ENABLE": "0"}, capture_output=True, text=True,
                       timeout=float(ENV.get("RUN_TIMEOUT", "1800")))
    if p.returncode != 0:
        print("FSDP2 failed:\n" + p.stderr[-2000:], file=sys.stderr)
        return None
    return float(p.stdout.split()[-1])


def scaling(work):
    for name in [m for m in models if m != "30b"]:
        alone = None
        for world in worlds:
            for degree in degrees(world):
                options = (f"{model_options(name, work, world)} --max-steps {STEPS} --sharded-data-parallel-degree {degree} "
                           f"--gradient-accumulation {ENV.get('ACCUMULATION', '1')}")
                lines = train(world, options, f"{work}/s.jsonl")[0]
                each = median(lines, "tokens_per_second") / world
                alone = alone or each
                bar, efficiency = f"scaling.{name}.efficiency", each / alone
                wanted = degree == (1 if name == "124m" else world)
                counts = bar in BARS and wanted and world == max(worlds) and (world >= 8 or bar in ENV.get("BARS", ""))
                record("scaling", f"{name} W={world} S={degree}", held(bar, efficiency) if counts else None,
                       tokens_per_second_each=each, efficiency=efficiency, step_ms=median(lines, "step_ms"),
                       exposed_comm_ms=median(lines, "exposed_comm_ms"), tflops=median(lines, "tflops"))
            peer = fsdp2(name, world) if ENV.get("PEERS", "fsdp2") else None
            if peer:  # the last row measured was S = W
                ratio = each * world / peer
                record("scaling", f"{name} W={world} FSDP2", held("scaling.fsdp2", ratio) if world > 1 else None,
                       tokens_per_second_each=peer / world, ours_over_theirs=ratio)
            elif ENV.get("PEERS", "fsdp2"):
                record("scaling", f"{name} W={world} FSDP2", skipped="no PyTorch, or it failed")


def thirty(work):
    world, name = max(worlds), "30b" if DEVICE == "cuda" else models[0]
    if DEVICE == "cuda" and world < 8:
        return record("30b", f"W={world}", skipped="needs 8 GPUs")
    options = model_options(name, work, world) + f" --sharded-data-parallel-degree {world} --offload-activations 1"
    if "checkpointing" not in options:
        options += " --activation-checkpointing 1"
    comm = "nccl" if DEVICE == "cuda" else "mpi"
    text = subprocess.run(["sdp-train", "--plan", "--json", "--device", DEVICE, "--comm", comm, "--world-size", str(world)] +
                          options.split(), stdout=subprocess.PIPE, check=True).stdout
    planned = json.loads(text)["device_bytes"]
    lines = train(world, options + f" --max-steps {max(4, STEPS // 2)}", f"{work}/30b.jsonl")[0]
    used = max(r["memory_bytes"] for r in lines if "loss" in r)
    error = max(0, abs(used - planned) - 65536) / planned  # devices keep some pages of their own
    record("30b", f"{name} memory", held("30b.memory", error), planned=planned, used=used, error=error)
    tflops, share = median(lines, "tflops"), statistics.median(r.get("mfu", 0.0) for r in lines if "loss" in r)
    record("30b", f"{name} speed", held("30b.peak", share) if share else None, tflops_each=tflops, of_peak=share,
           step_ms=median(lines, "step_ms"), exposed_comm_ms=median(lines, "exposed_comm_ms"))


def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def ranks_of(pid):
    """The sdp-train processes that mpirun started here."""
    out = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = open(f"/proc/{entry}/stat").read()
        except OSError:
            continue
        name, rest = stat[stat.index("(") + 1:stat.rindex(")")], stat[stat.rindex(")") + 2:].split()
        if name == "sdp-train" and int(rest[1]) == pid:
            out.append(int(entry))
    return sorted(out)


def faults(work):
    world, name = max(worlds), "xl" if "xl" in models else models[0]
    options = model_options(name, work, world)
    if world == 1:
        record("faults", "kill", skipped="needs two ranks")
    else:
        with tempfile.TemporaryFile("w+") as err:
            path = f"{work}/k.jsonl"
            p = start(world, f"{options} --max-steps 1000000 --collective-timeout 20 --metrics {path}", err)
            deadline = time.monotonic() + 600
            while len(read(path)) < 2 and p.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            ranks = ranks_of(p.pid)
            if not ranks:
                raise RuntimeError("no rank to kill: the job ended by itself or mpirun hides its processes")
            os.kill(ranks[-1], signal.SIGKILL)
            began = time.monotonic()
            try:
                p.communicate(timeout=300)
            except subprocess.TimeoutExpired:
                p.kill()
            while any(map(alive, ranks)) and time.monotonic() < began + 300:
                time.sleep(0.1)
            took = time.monotonic() - began
            left = [r for r in ranks if alive(r)]
            record("faults", f"kill one of {world}", held("faults.kill_s", took) and p.returncode != 0 and not left,
                   seconds=took, status=p.returncode, left=len(left))
    lines, out = train(world, f"{options} --max-steps 4 --checkpoint-dir {work}/xl --checkpoint-freq 2", f"{work}/c.jsonl")
    stall = next(r["checkpoint_stall_ms"] for r in lines if "checkpoint_stall_ms" in r)
    record("faults", f"{name} checkpoint stall", held("faults.stall_ms", stall), stall_ms=stall)
    began = time.monotonic()
    merged = subprocess.run(["ckpt-merge", "--quiet", out.split()[-1], "-o", f"{work}/merged"])
    record("faults", f"{name} ckpt-merge", merged.returncode == 0, seconds=time.monotonic() - began)


world_max = gpus() if DEVICE == "cuda" else max(map(int, ENV.get("WORLDS", "1 2").split()))
if world_max == 0:
    print("bench-multi: skipped: no NVIDIA GPU here (DEVICE=cpu MODELS=nano WORLDS=\"1 2\" tries the script)")
    sys.exit(77)
worlds = [w for w in map(int, ENV.get("WORLDS", "1 2 4 8").split()) if w <= world_max]
models = ENV.get("MODELS", "124m xl 7b").split()
unknown = [m for m in models if m not in MODELS]
parts = {"invariance": invariance, "scaling": scaling, "30b": thirty, "faults": faults}
chosen = ENV.get("PARTS", " ".join(parts)).split()
if unknown or not worlds or [c for c in chosen if c not in parts]:
    print(f"bench-multi: MODELS are {' '.join(MODELS)}; PARTS are {' '.join(parts)}; WORLDS at most {world_max}", file=sys.stderr)
    sys.exit(2)
folder = tempfile.mkdtemp(dir=ENV.get("WORK"))
try:
    say("part", "case", "measured")
    for part in chosen:
        try:
            parts[part](folder)
        except (RuntimeError, subprocess.SubprocessError, OSError, StopIteration, statistics.StatisticsError) as e:
            record(part, "ended early", False, error=str(e))
finally:
    shutil.rmtree(folder, ignore_errors=True)
failed = [name for name, ok in verdicts if not ok]
report = {"device": DEVICE, "worlds": worlds, "bars": {k: v[1] for k, v in BARS.items()}, "rows": rows,
          "passed": len(verdicts) - len(failed), "failed": failed}
with open(ENV.get("OUT", "bench-multi.json"), "w") as f:
    json.dump(report, f, indent=1)
print(f"bench-multi: {len(verdicts) - len(failed)} bars passed, {len(failed)} failed" + "".join(f"\n  FAIL {n}" for n in failed))
sys.exit(1 if failed else 0)
