#!/usr/bin/env python3
"""Writes a random checkpoint in the file layout of NLLB-200, of any size, straight to disk.

    big_checkpoint.py OUT [--size full|small] [--dtype F32|F16|BF16] [--seed 1]

`full` has the shape of NLLB-200-distilled-600M: d 1024, 12 + 12 layers, feed-forward 4096, 256,206 rows (2.46 GB in F32).
`small` is 105 MB of the same, for a test that every run can afford. Weights are normal with deviation
1/sqrt(columns). The tokenizer is that of tests/data/hf-nllb with further pieces behind its own, so that pieces, the 202
tags and the rows stand to each other as in the real one. Nothing larger than one piece of a tensor is ever in memory.
"""

import argparse
import json
import math
import os
import shutil
import struct

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TEMPLATE = os.path.join(ROOT, "tests", "data", "hf-nllb")
SIZES = {
    "full": {"d": 1024, "heads": 16, "ffn": 4096, "layers": 12, "pieces": 256_000, "positions": 1024},
    "small": {"d": 320, "heads": 5, "ffn": 1280, "layers": 2, "pieces": 64_000, "positions": 512},
}
BYTES = {"F32": 4, "F16": 2, "BF16": 2}
PIECE = 1 << 20  # numbers drawn at a time


def tensors(size, rows):
    """name -> shape, as transformers names M2M100ForConditionalGeneration's parameters; the tied table is stored once."""
    d, ffn = size["d"], size["ffn"]
    shapes = {"model.shared.weight": [rows, d]}

    def linear(name, out, columns):
        shapes[name + ".weight"] = [out, columns]
        shapes[name + ".bias"] = [out]

    def norm(name):
        shapes[name + ".weight"] = [d]
        shapes[name + ".bias"] = [d]

    for side in ("encoder", "decoder"):
        for i in range(size["layers"]):
            layer = f"model.{side}.layers.{i}"
            for attention in ["self_attn"] + (["encoder_attn"] if side == "decoder" else []):
                for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{layer}.{attention}.{projection}", d, d)
                norm(f"{layer}.{attention}_layer_norm")
            linear(layer + ".fc1", ffn, d)
            linear(layer + ".fc2", d, ffn)
            norm(layer + ".final_layer_norm")
        norm(f"model.{side}.layer_norm")
    return shapes


def stored(values, dtype):
    if dtype == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float16 if dtype == "F16" else np.float32).tobytes()


def write_tensors(path, shapes, dtype, seed):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(shapes):
        end = offset + math.prod(shapes[name]) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shapes[name], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(shapes):
            shape = shapes[name]
            left = math.prod(shape)
            gain = len(shape) == 1 and name.endswith("norm.weight")
            deviation = np.float32(1 / math.sqrt(shape[1]) if len(shape) == 2 else 0.05)
            while left > 0:
                values = rng.standard_normal(min(left, PIECE), dtype=np.float32) * deviation
                file.write(stored(values + np.float32(1) if gain else values, dtype))
                left -= values.size


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def write_tokenizer(path, pieces):
    """The template's SentencePiece model and further pieces. A message's repeated fields may stand anywhere, so they are
    appended; each is longer than any text of the tests, so that none of these is cut differently."""
    with open(os.path.join(TEMPLATE, "sentencepiece.bpe.model"), "rb") as file:
        model = file.read()
    own = sum(1 for _ in pieces_of(model))
    with open(path, "wb") as file:
        file.write(model)
        for i in range(own, pieces):
            text = f"\u2581filler{i:07d}".encode()
            message = b"\x0a" + varint(len(text)) + text + b"\x15" + struct.pack("<f", -float(i))
            file.write(b"\x0a" + varint(len(message)) + message)


def pieces_of(model):
    """The bytes of each piece (field 1) of a serialised ModelProto, whose fields all have lengths."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = model[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(model):
        field = number()
        length = number()
        if field == 0x0A:
            yield model[at : at + length]
        at += length


def write_checkpoint(out, size_name, dtype, seed):
    size = SIZES[size_name]
    os.makedirs(out)
    rows = size["pieces"] + 1 + 202 + 1 + 2  # fairseq's offset, tags, <mask>, rows that nothing names
    with open(os.path.join(TEMPLATE, "config.json")) as file:
        config = json.load(file)
    config.update(
        d_model=size["d"],
        vocab_size=rows,
        max_position_embeddings=size["positions"],
        torch_dtype={"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype],
        **{f"{side}_attention_heads": size["heads"] for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": size["ffn"] for side in ("encoder", "decoder")},
        **{f"{side}_layers": size["layers"] for side in ("encoder", "decoder")},
    )
    with open(os.path.join(out, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    for name in ("generation_config.json", "special_tokens_map.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(TEMPLATE, name), os.path.join(out, name))
    write_tokenizer(os.path.join(out, "sentencepiece.bpe.model"), size["pieces"])
    path = os.path.join(out, "model.safetensors")
    write_tensors(path, tensors(size, rows), dtype, seed)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--size", choices=sorted(SIZES), default="full")
    parser.add_argument("--dtype", choices=sorted(BYTES), default="F32")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    path = write_checkpoint(arguments.out, arguments.size, arguments.dtype, arguments.seed)
    print(f"{path}: {os.path.getsize(path):,} bytes")


if __name__ == "__main__":
    main()
