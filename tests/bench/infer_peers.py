"""What other software makes of the same model: tokens a second of greedy decoding, batch 1, one line "NAME RATE" each.
usage: infer_peers.py MODEL WORKDIR THREADS. CTranslate2 in fp32 and, where the processor has it, bf16; Hugging Face
generate in fp32. What is not installed is left out with a word on stderr."""
import os
import sys
import time

model, work, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS=str(threads))
PROMPT, NEW, RUNS = [15496, 995, 318], 60, 5


def best(generate):
    generate()
    rate = 0.0
    for _ in range(RUNS):
        began = time.perf_counter()
        count = generate()
        rate = max(rate, count / (time.perf_counter() - began))
    return rate


def ctranslate2_rates():
    import ctranslate2
    from transformers import AutoTokenizer

    prompt = AutoTokenizer.from_pretrained(model).convert_ids_to_tokens(PROMPT)
    ctranslate2.converters.TransformersConverter(model).convert(work + "/ct2", force=True)
    for dtype, name in (("float32", "fp32"), ("bfloat16", "bf16")):
        if dtype not in ctranslate2.get_supported_compute_types("cpu"):
            print("CTranslate2 has no %s on this processor" % dtype, file=sys.stderr)
            continue
        generator = ctranslate2.Generator(work + "/ct2", device="cpu", inter_threads=1, intra_threads=threads,
                                          compute_type=dtype)

        def generate():
            result = generator.generate_batch([prompt], max_length=NEW, min_length=NEW, sampling_topk=1, end_token=[],
                                              include_prompt_in_result=False)
            return len(result[0].sequences_ids[0])

        print("CTranslate2-%s %.2f" % (name, best(generate)), flush=True)


def transformers_rate():
    import torch
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    net = GPT2LMHeadModel.from_pretrained(model).float().eval()
    ids = torch.tensor([PROMPT])

    def generate():
        with torch.no_grad():
            out = net.generate(ids, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
        return out.shape[1] - len(PROMPT)

    print("HuggingFace-fp32 %.2f" % best(generate), flush=True)


for rates in (ctranslate2_rates, transformers_rate):
    try:
        rates()
    except ImportError as why:
        print("left out: %s" % why, file=sys.stderr)
