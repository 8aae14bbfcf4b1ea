"""tokenize_peers.py MERGES NAME FILE: MB/s of tiktoken and Hugging Face tokenizers on 8 MB of FILE, one thread,
by the encode call alone (start and file reading left out), best of three."""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
merges_path, name, path = sys.argv[1:]
with open(path, "rb") as f:
    text = f.read(8_000_000).decode("utf-8", "replace")
size = len(text.encode())


def best(encode):
    times = []
    for _ in range(3):
        began = time.perf_counter()
        encode(text)
        times.append(time.perf_counter() - began)
    return size / 1e6 / min(times)


def alphabet():
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    code = {b: chr(b) for b in own}
    hidden = [b for b in range(256) if b not in code]
    code.update({b: chr(256 + i) for i, b in enumerate(hidden)})
    return code, own + hidden


with open(merges_path, encoding="utf-8", newline="\n") as f:
    merges = [tuple(line.split(" ")) for line in f.read().split("\n")[1:] if line]
code, order = alphabet()
symbols = [code[b] for b in order] + [a + b for a, b in merges]
results = []
try:
    import tiktoken

    byte_of = {c: b for b, c in code.items()}
    ranks = {bytes(byte_of[c] for c in s): i for i, s in enumerate(symbols)}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
    encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks,
                                 special_tokens={"<|endoftext|>": len(ranks)})
    results.append(f"tiktoken {tiktoken.__version__} {best(encoding.encode_ordinary):.1f} MB/s")
except ImportError:
    pass
try:
    import tokenizers
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE({s: i for i, s in enumerate(symbols)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    results.append(f"tokenizers {tokenizers.__version__} {best(tokenizer.encode):.1f} MB/s")
except ImportError:
    pass
print(f"{name:10}", "   ".join(results) if results else "neither tiktoken nor tokenizers in this python")
