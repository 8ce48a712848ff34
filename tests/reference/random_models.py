#!/usr/bin/env python3
"""Writes random small models over the whole sharing family, with samples.json computed by the NumPy reference.

    random_models.py OUT [--count 60] [--seed 1] [--first 0] [--tokenizers DIR] [--no-shared-embedding]

Model i of a seed depends on nothing but (seed, i): OUT/model-0000, OUT/model-0001, ... Each is a complete model folder
that `koine-model verify` and koine_reference.Model read. Tokenizer files are taken from the model folders under DIR
(default tests/data/plans): their tables say how many rows belong to each. Samples that ask for named adapters, or for
none, say so by "source_adapter" and "target_adapter".
"""

import argparse
import json
import math
import os
import shutil
import sys

import numpy as np

from koine_reference import Model, read_safetensors, write_safetensors

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPECIAL = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
ACTIVATIONS = ["relu", "gelu", "gelu_tanh", "silu"]
CODES = ["en", "de", "fr", "es", "it", "pt", "ru", "zh", "pl", "nl", "tr", "uk", "sw", "fi"]
# A greedy choice closer than this may differ between f32 and f64: such a sample is drawn again.
SMALLEST_MARGIN = 1e-3


def find_tokenizers(directory):
    """[(path of a tokenizer.model, rows of its table)] of every language folder below `directory`, sizes distinct."""
    found = {}
    for folder, _, files in sorted(os.walk(directory)):
        if "tokenizer.model" in files and "language.safetensors" in files:
            path = os.path.join(folder, "tokenizer.model")
            key = (os.path.basename(folder), os.path.getsize(path))
            if key not in found:
                tensors = read_safetensors(os.path.join(folder, "language.safetensors"))
                if "embedding.weight" in tensors:
                    found[key] = (path, tensors["embedding.weight"].shape[0])
    return [found[key] for key in sorted(found)]


class Random:
    """The draws of one model."""

    def __init__(self, *seed):
        self.rng = np.random.default_rng(seed)

    def choice(self, options):
        return options[int(self.rng.integers(len(options)))]

    def integer(self, low, high):
        """low..high, both included."""
        return int(self.rng.integers(low, high + 1))

    def flip(self, probability=0.5):
        return bool(self.rng.random() < probability)

    def subset(self, options, at_least=0):
        while True:
            chosen = [option for option in options if self.flip()]
            if len(chosen) >= at_least:
                return chosen

    def weight(self, out, columns):
        # Gain 0.7: deeper stacks stay well conditioned, so that f32 is within a small part of the tolerance of f64.
        return self.rng.normal(0, 0.7 / math.sqrt(columns), (out, columns))

    def vector(self, size, mean=0.0, deviation=0.1):
        return self.rng.normal(mean, deviation, size)


def random_config(random, codes, allow_shared_embedding):
    d_head = random.choice([4, 5, 6, 8, 10, 12, 16, 20, 24])
    heads = random.integer(1, 6)
    encoder_layers, decoder_layers = random.integer(1, 4), random.integer(1, 3)
    positions = {"first_position": random.choice([0, 0, 2])}
    positions["max_positions"] = positions["first_position"] + random.integer(30, 64)
    d_model = random.choice([16, 20, 24, 30, 32, 34, 48, 64])
    kind = random.choice(["sinusoidal", "learned", "relative_buckets"])
    if kind == "relative_buckets":
        buckets = 2 * random.integer(2, 16)
        positions = {"type": kind, "max_positions": positions["max_positions"], "buckets": buckets}
        positions["max_distance"] = buckets // 2 + random.integer(1, 40)
    elif kind == "sinusoidal":
        exponent = random.choice(["i/(d_model/2-1)", "2i/d_model"])
        positions.update({"type": "sinusoidal", "layout": "sin_then_cos", "base": 10000, "exponent": exponent})
    else:
        positions["type"] = "learned"
    layers = {"encoder": [], "decoder": [], "scope": random.choice(["attention", "layer"])}
    if codes and random.flip(0.6):
        layers["encoder"] = random.subset(list(range(encoder_layers)))
        layers["decoder"] = random.subset(list(range(decoder_layers)))
    language_heads = random.choice([0, random.integer(0, heads)]) if codes else 0
    sharing = {"language_heads": language_heads, "language_layers": layers}
    if not codes or (allow_shared_embedding and random.flip(0.15)):
        sharing["embedding"] = "shared"
    pooling = {
        "mode": random.choice(["mean", "mean", "cls"]),
        "includes_eos": random.flip(),
        "normalize": random.flip(0.7),
    }
    if random.flip(0.3):
        activation = random.choice(["tanh", "identity"])
        pooling["dense"] = {"size": random.integer(1, 70), "activation": activation, "bias": random.flip()}
    return {
        "format": "koine",
        "format_version": 1,
        "name": "random",
        "license": "Apache-2.0",
        "tasks": ["translate", "encode"],
        "architecture": {
            "kind": "encoder-decoder",
            "d_model": d_model,
            "heads": heads,
            "d_head": d_head,
            "d_ffn": random.integer(8, 96),
            "encoder_layers": encoder_layers,
            "decoder_layers": decoder_layers,
            "norm": {
                "type": random.choice(["layer_norm", "rms_norm"]),
                "eps": random.choice([1e-5, 1e-6]),
                "placement": random.choice(["pre", "post"]),
            },
            "final_norm": random.flip(),
            "linear_bias": random.flip(0.7),
            "activation": random.choice(ACTIVATIONS),
            "gated_ffn": random.flip(),
            "attention_scale": random.choice([1.0, 1.0, 1.5]) / math.sqrt(d_head),
            "embedding_scale": random.choice([1.0, math.sqrt(d_model)]),
            "embedding_norm": random.flip(0.3),
            "positions": positions,
            "tied_output": random.flip(),
            "output_bias": random.flip(),
            "output_scale": random.choice([1.0, 1.0, 0.5]),
        },
        "sharing": sharing,
        "prompt": {"source": ["$text", "</s>"], "decoder_start": "<s>"},
        "special_tokens": SPECIAL,
        "pooling": pooling,
        "languages": codes,
    }


class Weights:
    """Random tensors of one configuration, by owner."""

    def __init__(self, random, config):
        self.random = random
        self.config = config
        self.architecture = config["architecture"]
        self.sharing = config["sharing"]
        self.d = self.architecture["d_model"]

    def _stacks(self):
        return [("encoder", self.architecture["encoder_layers"]), ("decoder", self.architecture["decoder_layers"])]

    def _sites(self, side):
        return ["self_attn", "ffn"] if side == "encoder" else ["self_attn", "cross_attn", "ffn"]

    def _is_own(self, side, layer):
        return layer in self.sharing["language_layers"][side]

    def _norm(self, name):
        tensors = {name + ".weight": self.random.vector(self.d, 1.0)}
        if self.architecture["norm"]["type"] == "layer_norm":
            tensors[name + ".bias"] = self.random.vector(self.d)
        return tensors

    def _linear(self, name, out, columns, bias):
        tensors = {name + ".weight": self.random.weight(out, columns)}
        if bias:
            tensors[name + ".bias"] = self.random.vector(out)
        return tensors

    def _attention(self, name, heads, output_bias=True):
        bias, inner = self.architecture["linear_bias"], heads * self.architecture["d_head"]
        if heads == 0:  # all heads are the language's: the bias of the result is all that is shared
            return {name + ".o.bias": self.random.vector(self.d)} if bias and output_bias else {}
        tensors = {}
        for projection in "qkv":
            tensors.update(self._linear(f"{name}.{projection}", inner, self.d, bias))
        tensors.update(self._linear(f"{name}.o", self.d, inner, bias and output_bias))
        return tensors

    def _feed_forward(self, name):
        bias, d_ffn = self.architecture["linear_bias"], self.architecture["d_ffn"]
        tensors = self._linear(name + ".up", d_ffn, self.d, bias)
        if self.architecture["gated_ffn"]:
            tensors.update(self._linear(name + ".gate", d_ffn, self.d, bias))
        tensors.update(self._linear(name + ".down", self.d, d_ffn, bias))
        return tensors

    def _layer(self, side, layer, heads, attention, rest):
        """The tensors of one layer that an owner of its attention and/or of its rest holds."""
        tensors, name = {}, f"{side}.layers.{layer}"
        for site in self._sites(side):
            if attention and site != "ffn":
                tensors.update(self._attention(f"{name}.{site}", heads))
            if rest and site == "ffn":
                tensors.update(self._feed_forward(name + ".ffn"))
            if rest:
                tensors.update(self._norm(f"{name}.{site}_norm"))
        return tensors

    def vocabulary(self, rows):
        # Embedded rows have elements of about 1, logits over a normed row a spread of 1 to 6: far from the tolerance at
        # one end, far above SMALLEST_MARGIN at the other.
        spread = 1 / self.architecture["embedding_scale"]
        tensors = {"embedding.weight": self.random.rng.normal(0, spread, (rows, self.d))}
        if not self.architecture["tied_output"]:
            tensors["output.weight"] = self.random.rng.normal(0, 2 / math.sqrt(self.d), (rows, self.d))
        if self.architecture["output_bias"]:
            tensors["output.bias"] = self.random.vector(rows)
            tensors["output.bias"][SPECIAL["eos"]] += self.random.choice([0.0, 4.0, 8.0])
        return tensors

    def shared(self, rows):
        """`rows`: of the shared table, or None."""
        whole = self.sharing["language_layers"]["scope"] == "layer"
        heads = self.architecture["heads"] - self.sharing["language_heads"]
        tensors = self.vocabulary(rows) if rows else {}
        for side, layers in self._stacks():
            for layer in range(layers):
                own = self._is_own(side, layer)
                tensors.update(self._layer(side, layer, heads, not own, not (own and whole)))
            if self.architecture["final_norm"]:
                tensors.update(self._norm(side + ".final_norm"))
            if self.architecture["embedding_norm"]:
                tensors.update(self._norm(side + ".embedding_norm"))
            positions = self.architecture["positions"]
            if positions["type"] == "learned":
                table = self.random.rng.normal(0, 0.3, (positions["max_positions"], self.d))
                tensors[side + ".positions.weight"] = table
            elif positions["type"] == "relative_buckets":
                table = self.random.rng.normal(0, 1, (positions["buckets"], self.architecture["heads"]))
                tensors[side + ".relative_bias.weight"] = table
        if "dense" in self.config["pooling"]:
            dense = self.config["pooling"]["dense"]
            tensors.update(self._linear("pooling.dense", dense["size"], self.d, dense["bias"]))
        return tensors

    def own_parts(self):
        """A language's own layers and own heads."""
        whole = self.sharing["language_layers"]["scope"] == "layer"
        tensors = {}
        for side, layers in self._stacks():
            for layer in range(layers):
                if self._is_own(side, layer):
                    tensors.update(self._layer(side, layer, self.architecture["heads"], True, whole))
                elif self.sharing["language_heads"] > 0:
                    for site in self._sites(side):
                        if site != "ffn":
                            name = f"{side}.layers.{layer}.{site}.own"
                            tensors.update(self._attention(name, self.sharing["language_heads"], output_bias=False))
        return tensors

    def adapter(self, kind):
        """(description, tensors) of a random adapter."""
        if kind == "none":
            return {"kind": "none"}, {}
        rank = self.random.choice([1, 2, 3, 4, 8, 13])
        if kind == "scale":
            sites = self.random.subset(["self_attn", "cross_attn", "ffn"], at_least=1)
            tensors = {
                f"{side}.layers.{layer}.{site}.scale": self.random.vector(self.d, 1.0, 0.3)
                for side, layers in self._stacks()
                for layer in range(layers)
                for site in self._sites(side)
                if site in sites
            }
            return {"kind": kind, "sites": sites}, tensors
        if kind == "bottleneck":
            tensors = {}
            for side, layers in self._stacks():
                for layer in range(layers):
                    name = f"{side}.layers.{layer}.adapter"
                    tensors.update(self._norm(name + ".norm"))
                    tensors.update(self._linear(name + ".down", rank, self.d, True))
                    tensors.update(self._linear(name + ".up", self.d, rank, True))
            return {"kind": kind, "rank": rank, "activation": self.random.choice(ACTIVATIONS)}, tensors
        alpha, stabilised = self.random.choice([1, 4, 8, 2.5]), self.random.flip()
        scale = alpha / (math.sqrt(rank) if stabilised else rank)
        density = self.random.choice([0.2, 0.5, 1.0])
        tensors = {}
        while not tensors:
            for name, out, columns in self._projections():
                if self.random.flip(density):
                    tensors[name + ".lora.a"] = self.random.weight(rank, columns)
                    tensors[name + ".lora.b"] = self.random.rng.normal(0, 0.5 / (scale * math.sqrt(rank)), (out, rank))
        config = {
            "kind": kind,
            "rank": rank,
            "alpha": alpha,
            "rank_stabilised": stabilised,
        }
        return config, tensors

    def _projections(self):
        """(name, out, in) of everything a LoRA pair may stand on."""
        for side, layers in self._stacks():
            for layer in range(layers):
                heads = self.architecture["heads"]
                if not self._is_own(side, layer):
                    heads -= self.sharing["language_heads"]
                inner, d_ffn = heads * self.architecture["d_head"], self.architecture["d_ffn"]
                for site in self._sites(side):
                    name = f"{side}.layers.{layer}.{site}"
                    if site == "ffn":
                        yield name + ".up", d_ffn, self.d
                        if self.architecture["gated_ffn"]:
                            yield name + ".gate", d_ffn, self.d
                        yield name + ".down", self.d, d_ffn
                    elif inner > 0:
                        for projection in "qkv":
                            yield f"{name}.{projection}", inner, self.d
                        yield name + ".o", self.d, inner


def _write_json(path, value, indent=1):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=indent)
        file.write("\n")


def _write_tensors(random, path, tensors):
    """One dtype for the file, or one for each tensor; ids stay integers."""
    file_dtype = random.choice(["F32", "F32", "BF16", "F16", "mixed"])
    dtypes = {}
    for name in sorted(tensors):
        dtype = random.choice(["F32", "BF16", "F16"]) if file_dtype == "mixed" else file_dtype
        dtypes[name] = "I32" if name == "vocab.ids" else dtype
    write_safetensors(path, tensors, dtypes)


def _rounded(values):
    """Nine digits: exact for an f32, and far inside the tolerances."""
    return [float(f"{value:.9g}") for value in np.asarray(values, dtype=np.float64)]


def random_sample(random, model, source, target, source_adapter=None, target_adapter=None):
    """One entry of samples.json. Drawn again while a greedy step is a near-tie."""
    source_rows, target_rows = model.embedding(source).shape[0], model.embedding(target).shape[0]
    for _ in range(100):
        source_ids = [random.integer(3, source_rows - 1) for _ in range(random.integer(1, 16))] + [SPECIAL["eos"]]
        decoder_ids = [SPECIAL["bos"]] + [random.integer(3, target_rows - 1) for _ in range(random.integer(0, 11))]
        max_steps = random.integer(3, 20)
        memory = model.encode(source, source_ids, source_adapter)
        greedy_ids, margin = model.greedy(target, memory, SPECIAL["bos"], max_steps, target_adapter)
        if margin > SMALLEST_MARGIN:
            break
    else:
        raise RuntimeError(f"{source} -> {target}: 100 samples in a row with a near-tie")
    logits = model.decode(target, memory, decoder_ids, target_adapter)
    best = [np.argsort(-row, kind="stable")[:4] for row in logits]
    sample = {
        **({} if source is None else {"source": source, "target": target}),
        "text": "(random ids)",
        "source_ids": source_ids,
        "decoder_ids": decoder_ids,
        "encoder_last_row": _rounded(memory[-1]),
        "embedding": _rounded(model.embed(memory)),
        "logits_sum": _rounded(logits.sum(axis=1)),
        "logits_top4": [[[int(i), *_rounded([row[i]])] for i in ids] for row, ids in zip(logits, best)],
        "greedy_ids": greedy_ids,
        "max_steps": max_steps,
    }
    if source_adapter is not None:
        sample["source_adapter"] = source_adapter
    if target_adapter is not None:
        sample["target_adapter"] = target_adapter
    return sample


def make_model(directory, seed, index, tokenizers, allow_shared_embedding=True):
    """Writes model `index` of `seed` to `directory`, which must not exist. Returns the loaded Model."""
    random = Random(seed, index)
    codes = CODES[:]
    random.rng.shuffle(codes)
    codes = codes[: random.integer(3, 12)]
    if allow_shared_embedding and random.flip(0.1):
        codes = []  # a model without languages
    config = random_config(random, codes, allow_shared_embedding)
    config["name"] = f"random-{seed}-{index}"
    weights = Weights(random, config)
    shares = config["sharing"].get("embedding") == "shared"

    os.makedirs(directory)
    _write_json(os.path.join(directory, "model.json"), config)
    shared_tokenizer, shared_rows = random.choice(tokenizers)
    if shares:
        shutil.copyfile(shared_tokenizer, os.path.join(directory, "tokenizer.model"))
    shared = weights.shared(shared_rows if shares else None)
    _write_tensors(random, os.path.join(directory, "shared.safetensors"), shared)

    kinds = ["none", "scale", "bottleneck", "lora"]
    named = {}
    for place, code in enumerate(codes):
        folder = os.path.join(directory, "languages", code)
        os.makedirs(folder)
        # The first four languages cover all kinds in some order; the others are drawn.
        if place == 0:
            random.rng.shuffle(kinds)
        adapter, tensors = weights.adapter(kinds[place] if place < 4 else random.choice(kinds))
        tensors.update(weights.own_parts())
        if not shares:
            tokenizer, rows = random.choice(tokenizers)
            shutil.copyfile(tokenizer, os.path.join(folder, "tokenizer.model"))
            tensors.update(weights.vocabulary(rows))
            if random.flip(0.2):
                tensors["vocab.ids"] = np.arange(rows)
        description = {"code": code, "name": code, "direction": "ltr", "aliases": [], "adapter": adapter}
        _write_json(os.path.join(folder, "language.json"), description)
        _write_tensors(random, os.path.join(folder, "language.safetensors"), tensors)
        if random.flip(0.3):
            for name in random.subset(["legal", "chat", "news"], at_least=1):
                further, tensors = weights.adapter(random.choice(["scale", "bottleneck", "lora"]))
                adapter_folder = os.path.join(folder, "adapters", name)
                os.makedirs(adapter_folder)
                _write_json(os.path.join(adapter_folder, "adapter.json"), further)
                _write_tensors(random, os.path.join(adapter_folder, "adapter.safetensors"), tensors)
                named.setdefault(code, []).append(name)

    # What was rounded to the files' dtypes counts, so read it back.
    model = Model.load(directory)
    targets = codes[:]
    random.rng.shuffle(targets)
    pairs = list(zip(codes, targets)) + [(random.choice(codes),) * 2] if codes else [(None, None)] * 4
    samples = [random_sample(random, model, source, target) for source, target in pairs]
    for code in named:
        for name in named[code] + ["none"]:
            other = random.choice(codes)
            samples.append(random_sample(random, model, code, other, source_adapter=name))
            samples.append(random_sample(random, model, other, code, target_adapter=name))
        samples.append(random_sample(random, model, code, code, named[code][0], named[code][-1]))
    _write_json(os.path.join(directory, "samples.json"), samples, indent=None)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="index of the first model")
    parser.add_argument("--tokenizers", default=os.path.join(ROOT, "tests", "data", "plans"))
    parser.add_argument("--no-shared-embedding", action="store_true")
    options = parser.parse_args()
    tokenizers = find_tokenizers(options.tokenizers)
    if not tokenizers:
        print(f"no tokenizer.model beside a language.safetensors under {options.tokenizers}", file=sys.stderr)
        return 1
    for index in range(options.first, options.first + options.count):
        directory = os.path.join(options.out, f"model-{index:04d}")
        make_model(directory, options.seed, index, tokenizers, not options.no_shared_embedding)
    print(f"{options.count} models in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
