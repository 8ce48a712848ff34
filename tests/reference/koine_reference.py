"""Koine's sharing family in NumPy, float64: the oracle of the randomised tests.

Written from the sharing semantics (FORMAT.md), not from the C++: one function per sentence of that text, no batching,
no caches, no packing. It is slow on purpose; being obviously right is its only feature.

A language's parameters are used by side: the encoder uses the source language, the decoder (cross-attention included)
the target language.
"""

import json
import math
import os
import struct

import numpy as np

# ---------------------------------------------------------------------------------------------------------------------
# Files


def _float32_from_bf16(raw):
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path):
    """{name: float64 array}, or int64 for I32 tensors. Checks that every tensor's bytes fit its shape."""
    with open(path, "rb") as file:
        data = file.read()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + header_bytes + begin : 8 + header_bytes + end]
        dtype = entry["dtype"]
        if dtype == "F32":
            values = np.frombuffer(raw, "<f4").astype(np.float64)
        elif dtype == "F16":
            values = np.frombuffer(raw, "<f2").astype(np.float64)
        elif dtype == "BF16":
            values = _float32_from_bf16(raw).astype(np.float64)
        elif dtype == "I32":
            values = np.frombuffer(raw, "<i4").astype(np.int64)
        else:
            raise ValueError(f"{path}: {name} has dtype {dtype}; the reference reads F32, F16, BF16 and I32")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def _to_bf16(values):
    """Round to nearest, ties to even."""
    bits = values.astype("<f4").view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors, dtypes):
    """Writes {name: array} in the dtypes of {name: "F32" | "F16" | "BF16" | "I32"}."""
    header, chunks, offset = {}, [], 0
    for name in sorted(tensors):
        values = np.ascontiguousarray(tensors[name])
        dtype = dtypes[name]
        if dtype == "BF16":
            raw = _to_bf16(values).tobytes()
        else:
            raw = values.astype({"F32": "<f4", "F16": "<f2", "I32": "<i4"}[dtype]).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        chunks.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def _read_json(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


# ---------------------------------------------------------------------------------------------------------------------
# Elementary functions

_erf = np.vectorize(math.erf, otypes=[np.float64])


def activation(name, x):
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return 0.5 * x * (1 + _erf(x / math.sqrt(2)))
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name == "silu":
        return x / (1 + np.exp(-x))
    raise ValueError(f"unknown activation {name}")


def softmax(scores):
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


# ---------------------------------------------------------------------------------------------------------------------
# The model


class Adapter:
    """An adapter: its description and its tensors."""

    def __init__(self, config, tensors):
        self.config = config
        self.kind = config.get("kind", "none")
        self.tensors = tensors

    def lora_scale(self):
        rank = self.config["rank"]
        divisor = math.sqrt(rank) if self.config.get("rank_stabilised", False) else rank
        return self.config["alpha"] / divisor


NO_ADAPTER = Adapter({"kind": "none"}, {})


class Language:
    """A language folder. `adapter` is the default one, `adapters` the named ones."""

    def __init__(self, config, tensors, adapters):
        self.config = config
        self.tensors = tensors
        self.adapter = Adapter(config.get("adapter", {"kind": "none"}), tensors)
        self.adapters = adapters

    def choose(self, name):
        """None: the default; "none": none; else the one of that name."""
        if name is None:
            return self.adapter
        return NO_ADAPTER if name == "none" else self.adapters[name]


class Model:
    def __init__(self, config, shared, languages):
        self.config = config
        self.architecture = config["architecture"]
        self.sharing = config["sharing"]
        self.shared = shared
        self.languages = languages
        self.shared_heads = self.architecture["heads"] - self.sharing["language_heads"]

    @staticmethod
    def load(directory):
        config = _read_json(os.path.join(directory, "model.json"))
        shared = read_safetensors(os.path.join(directory, "shared.safetensors"))
        languages = {}
        for code in config.get("languages", []):
            folder = os.path.join(directory, "languages", code)
            adapters = {}
            adapters_folder = os.path.join(folder, "adapters")
            for name in sorted(os.listdir(adapters_folder)) if os.path.isdir(adapters_folder) else []:
                adapters[name] = Adapter(
                    _read_json(os.path.join(adapters_folder, name, "adapter.json")),
                    read_safetensors(os.path.join(adapters_folder, name, "adapter.safetensors")),
                )
            path = os.path.join(folder, "language.safetensors")
            tensors = read_safetensors(path) if os.path.exists(path) else {}
            languages[code] = Language(_read_json(os.path.join(folder, "language.json")), tensors, adapters)
        if not languages:  # a model without languages: None in their place
            languages[None] = Language({}, {}, {})
        return Model(config, shared, languages)

    # -- who owns what

    def _shares_embedding(self):
        return self.sharing.get("embedding", "language") == "shared"

    def _vocabulary_owner(self, language):
        return self.shared if self._shares_embedding() else self.languages[language].tensors

    def embedding(self, language):
        return self._vocabulary_owner(language)["embedding.weight"]

    def _is_own_layer(self, side, layer):
        return layer in self.sharing["language_layers"][side]

    def _attention_owner(self, side, layer, language):
        return self.languages[language].tensors if self._is_own_layer(side, layer) else self.shared

    def _layer_owner(self, side, layer, language):
        """Owner of the norms and the feed-forward part."""
        whole = self.sharing["language_layers"].get("scope", "attention") == "layer"
        return self.languages[language].tensors if whole and self._is_own_layer(side, layer) else self.shared

    # -- parts

    def _norm(self, owner, name, x):
        norm = self.architecture["norm"]
        weight = owner[name + ".weight"]
        if norm["type"] == "rms_norm":
            return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + norm["eps"]) * weight
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred * centred).mean(axis=-1, keepdims=True)
        return centred / np.sqrt(variance + norm["eps"]) * weight + owner[name + ".bias"]

    def _linear(self, owner, name, x, adapter=NO_ADAPTER):
        """W x + bias + scale * b(a(x)): the LoRA pair and the bias are there or not."""
        y = x @ owner[name + ".weight"].T
        if name + ".bias" in owner:
            y = y + owner[name + ".bias"]
        if adapter.kind == "lora" and name + ".lora.a" in adapter.tensors:
            low = x @ adapter.tensors[name + ".lora.a"].T
            y = y + adapter.lora_scale() * (low @ adapter.tensors[name + ".lora.b"].T)
        return y

    def _bucket(self, side, distance):
        """The row of the table of relative positions for a key `distance` positions after the query."""
        positions = self.architecture["positions"]
        n, r, base = positions["buckets"], max(-distance, 0), 0
        if side == "encoder":
            n //= 2
            r, base = abs(distance), n if distance > 0 else 0
        m = n // 2
        if r < m:
            return base + r
        # A hair more than the formula: where it gives a whole number, rounding must not make it the one below.
        further = math.log(r / m) / math.log(positions["max_distance"] / m) * (n - m) + 1e-9
        return base + min(n - 1, m + int(further))

    def _bias(self, side, rows):
        """[heads, rows, rows]: what the scores of self-attention get for relative positions."""
        if self.architecture["positions"]["type"] != "relative_buckets":
            return np.zeros((self.architecture["heads"], rows, rows))
        table = self.shared[f"{side}.relative_bias.weight"]
        buckets = [[self._bucket(side, key - query) for key in range(rows)] for query in range(rows)]
        return table[np.asarray(buckets)].transpose(2, 0, 1)

    def _heads(self, q, k, v, causal, bias):
        """Attention of some heads: [rows, heads * d_head] each; the heads side by side."""
        d_head = self.architecture["d_head"]
        out = np.zeros((q.shape[0], q.shape[1]))
        for begin in range(0, q.shape[1], d_head):
            head = slice(begin, begin + d_head)
            scores = self.architecture["attention_scale"] * (q[:, head] @ k[:, head].T) + bias[begin // d_head]
            if causal:
                scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
            out[:, head] = softmax(scores) @ v[:, head]
        return out

    def _attention(self, side, layer, block, language, adapter, x, memory, causal):
        """o·concat(shared heads) + own.o·concat(own heads) + o.bias; on an own layer all heads are the language's."""
        name = f"{side}.layers.{layer}.{block}"
        owner = self._attention_owner(side, layer, language)
        bias = np.zeros((self.architecture["heads"], len(x), len(memory)))
        if block == "self_attn":
            bias = self._bias(side, len(x))
        result = 0
        if self._is_own_layer(side, layer) or self.shared_heads > 0:
            q = self._linear(owner, name + ".q", x, adapter)
            k = self._linear(owner, name + ".k", memory, adapter)
            v = self._linear(owner, name + ".v", memory, adapter)
            result = self._linear(owner, name + ".o", self._heads(q, k, v, causal, bias), adapter)
        elif name + ".o.bias" in owner:
            result = owner[name + ".o.bias"]
        if not self._is_own_layer(side, layer) and self.sharing["language_heads"] > 0:
            own, tensors = name + ".own", self.languages[language].tensors
            q = self._linear(tensors, own + ".q", x)
            k = self._linear(tensors, own + ".k", memory)
            v = self._linear(tensors, own + ".v", memory)
            result = result + self._linear(tensors, own + ".o", self._heads(q, k, v, causal, bias[self.shared_heads :]))
        return result

    def _feed_forward(self, side, layer, language, adapter, x):
        name = f"{side}.layers.{layer}.ffn"
        owner = self._layer_owner(side, layer, language)
        act = self.architecture["activation"]
        up = self._linear(owner, name + ".up", x, adapter)
        if self.architecture["gated_ffn"]:
            hidden = activation(act, self._linear(owner, name + ".gate", x, adapter)) * up
        else:
            hidden = activation(act, up)
        return self._linear(owner, name + ".down", hidden, adapter)

    def _sublayer(self, side, layer, site, language, adapter, x, function):
        name = f"{side}.layers.{layer}"
        owner = self._layer_owner(side, layer, language)
        scale = 1.0
        if adapter.kind == "scale":
            scale = adapter.tensors.get(f"{name}.{site}.scale", 1.0)
        if self.architecture["norm"]["placement"] == "pre":
            return x + scale * function(self._norm(owner, f"{name}.{site}_norm", x))
        return self._norm(owner, f"{name}.{site}_norm", x + scale * function(x))

    def _bottleneck(self, side, layer, adapter, x):
        if adapter.kind != "bottleneck":
            return x
        name = f"{side}.layers.{layer}.adapter"
        hidden = self._linear(adapter.tensors, name + ".down", self._norm(adapter.tensors, name + ".norm", x))
        return x + self._linear(adapter.tensors, name + ".up", activation(adapter.config["activation"], hidden))

    def _positions(self, side, count):
        """[count, d_model]: the rows of the first `count` tokens."""
        positions = self.architecture["positions"]
        if positions["type"] == "relative_buckets":
            return np.zeros((count, self.architecture["d_model"]))
        first = positions.get("first_position", 0)
        if first + count > positions["max_positions"]:
            raise ValueError(f"{count} tokens from row {first} on do not fit {positions['max_positions']} positions")
        rows = np.arange(first, first + count)
        if positions["type"] == "learned":
            return self.shared[f"{side}.positions.weight"][rows]
        half = self.architecture["d_model"] // 2
        i = np.arange(half)
        if positions["exponent"] == "i/(d_model/2-1)":
            exponent = i / (half - 1)
        elif positions["exponent"] == "2i/d_model":
            exponent = 2 * i / self.architecture["d_model"]
        else:
            raise ValueError(f"unknown exponent {positions['exponent']}")
        angles = rows[:, None] * (float(positions["base"]) ** -exponent)[None, :]
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    def _embed(self, side, language, ids):
        x = self.architecture["embedding_scale"] * self.embedding(language)[np.asarray(ids)]
        x = x + self._positions(side, len(ids))
        return self._norm(self.shared, f"{side}.embedding_norm", x) if self.architecture["embedding_norm"] else x

    # -- what a model computes

    def encode(self, language, ids, adapter=None):
        """The encoder's rows [len(ids), d_model], the final norm included."""
        chosen = self.languages[language].choose(adapter)
        x = self._embed("encoder", language, ids)
        for layer in range(self.architecture["encoder_layers"]):

            def attend(h, layer=layer):
                return self._attention("encoder", layer, "self_attn", language, chosen, h, h, False)

            def feed_forward(h, layer=layer):
                return self._feed_forward("encoder", layer, language, chosen, h)

            x = self._sublayer("encoder", layer, "self_attn", language, chosen, x, attend)
            x = self._sublayer("encoder", layer, "ffn", language, chosen, x, feed_forward)
            x = self._bottleneck("encoder", layer, chosen, x)
        return self._norm(self.shared, "encoder.final_norm", x) if self.architecture["final_norm"] else x

    def decode(self, language, memory, ids, adapter=None):
        """Teacher-forced logits [len(ids), vocabulary of `language`] over the encoder's rows `memory`."""
        chosen = self.languages[language].choose(adapter)
        x = self._embed("decoder", language, ids)
        for layer in range(self.architecture["decoder_layers"]):

            def attend(h, layer=layer):
                return self._attention("decoder", layer, "self_attn", language, chosen, h, h, True)

            def cross(h, layer=layer):
                return self._attention("decoder", layer, "cross_attn", language, chosen, h, memory, False)

            def feed_forward(h, layer=layer):
                return self._feed_forward("decoder", layer, language, chosen, h)

            x = self._sublayer("decoder", layer, "self_attn", language, chosen, x, attend)
            x = self._sublayer("decoder", layer, "cross_attn", language, chosen, x, cross)
            x = self._sublayer("decoder", layer, "ffn", language, chosen, x, feed_forward)
            x = self._bottleneck("decoder", layer, chosen, x)
        if self.architecture["final_norm"]:
            x = self._norm(self.shared, "decoder.final_norm", x)
        x = self.architecture.get("output_scale", 1.0) * x
        owner = self._vocabulary_owner(language)
        table = owner["embedding.weight" if self.architecture["tied_output"] else "output.weight"]
        logits = x @ table.T
        return logits + owner["output.bias"] if self.architecture["output_bias"] else logits

    def embed(self, encoder_rows):
        """The sentence embedding of one sentence's encoder rows."""
        pooling = self.config["pooling"]
        if pooling["mode"] == "cls":
            vector = encoder_rows[0]
        else:
            rows = encoder_rows if pooling["includes_eos"] else encoder_rows[:-1]
            vector = rows.mean(axis=0)
        if "dense" in pooling:
            vector = self._linear(self.shared, "pooling.dense", vector)
            vector = np.tanh(vector) if pooling["dense"]["activation"] == "tanh" else vector
        return vector / np.linalg.norm(vector) if pooling["normalize"] else vector

    def greedy(self, language, memory, start, max_steps, adapter=None):
        """(ids from the start token on, smallest margin between the two best logits of any step)."""
        ids, margin = [start], math.inf
        for _ in range(max_steps):
            logits = self.decode(language, memory, ids, adapter)[-1]
            best = int(np.argmax(logits))  # the lowest id of equal ones
            margin = min(margin, float(logits[best] - np.delete(logits, best).max()))
            ids.append(best)
            if best == self.config["special_tokens"]["eos"]:
                break
        return ids, margin
