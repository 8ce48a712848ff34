#!/usr/bin/env python3
"""Writes tests/data/hf-roberta: a RoBERTa sentence encoder with a byte-level BPE tokenizer, and what the library answers.

    tests/reference/roberta_checkpoint.py OUT

The tokenizer is trained on the sentences of tests/data/demo.json; the weights are random. expected.json is computed in
float64. Nothing of Koine is used; transformers 4.46.3, tokenizers 0.20.3, torch 2.4.1 and sentence-transformers 3.2.1
made the stored files.
"""
import json
import os
import sys

import numpy
import tokenizers
import torch
import transformers
from sentence_transformers import SentenceTransformer, models
from tokenizers.implementations import ByteLevelBPETokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
VOCABULARY, WIDTH, LAYERS, HEADS, INNER, LONGEST = 800, 32, 2, 2, 64, 128
MARKS = ["<s>", "<pad>", "</s>", "<unk>"]

FURTHER = [
    "Hello,   world!", "naïve café ﬁne Ⅳ", "日本語 mixed", "a", "I'm sure they'll say it's what we've done, don't you?",
    "مرحبا بالعالم، كيف الحال؟", "Emoji 👩‍👩‍👧 and 🇩🇪 flags"]
# Ids only; uncut.
EDGES = [
    "", " ", "  ", "   ", "\t", "\n", " \n ", "a ", "a  ", " a", "  a", "\ta", "a\tb", "a\t\tb", "a \tb", "a\t b", "a\n\nb", "a\r\nb",
    "a     b", "line one\n  line two\n\n\tline three\n", "a\u00a0b", "a \u00a0b", "a\u00a0 b", "\u00a0", "\u3000日本\u3000語",
    "a\u2028b\u2029c\u0085d", "a\u200bb\u200db\ufeffc", "\x1c\x1d\x1e\x1f", "a\x0bb\x0cc", "NUL\x00here", "\x7f\x80\x9f",
    "it's", "it'S", "IT'S", "'s", "''s", " 's", "a 's", "'t're've'm'll'd", "'l", "'v", "'r", "'", "' s", "don't", "don’t",
    "x'sy", "'sss", "I'd've", "'re're", "123", "12 34", "1a2b", "a1 b2", "३४५ ٣٤٥ ５６７ ⅣⅤ ½²", "1,234.56", "100%-ig",
    "e\u0301 cafe\u0301", "a\u0300\u0301\u0302", "\u0301", " \u0301a", "नमस्ते दुनिया", "ภาษาไทย", "한국어 테스트", "한국어",
    "中文分词测试。", "ქართული", "አማርኛ", "العَرَبِيَّة", "עברית", "😀", "😀😀 😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "\U0001f1e9\U0001f1ea", "𝕏𝟙 𝒳",
    "\U000e0041\U0010ffff\ue000", "\ufffd", "\ufffe\uffff", "ǅ ʰ ª º", "_a_ __b", "$5 €5 +5 -5", "...!!!???", " ... !",
    "#hash @at", "http://example.org/a?b=c&d=e", "C:\\path\\to", "Ġa", "Ċ Ġ", "ÃÂ", "<s>", "</s> <pad> <unk> <mask>", "a <mask>b",
    "A" * 300, "straßenbahnhaltestelle" * 12, "🙂" * 40, "é" * 100, " " * 200, "\n" * 50 + "x", "ab" * 120 + " " + "'" * 60,
]


def train(texts, out):
    trainer = ByteLevelBPETokenizer(add_prefix_space=False)
    trainer.train_from_iterator(texts, vocab_size=VOCABULARY - 1, min_frequency=2, special_tokens=MARKS, show_progress=False)
    trainer.save_model(out)
    # <mask> has the last id, as in the published checkpoints.
    path = os.path.join(out, "vocab.json")
    with open(path, encoding="utf-8") as file:
        vocabulary = json.load(file)
    vocabulary["<mask>"] = len(vocabulary)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(vocabulary, file, ensure_ascii=False, separators=(",", ":"))
    transformers.RobertaTokenizerFast(os.path.join(out, "vocab.json"), os.path.join(out, "merges.txt"),
                                      model_max_length=LONGEST).save_pretrained(out)
    with open(path, encoding="utf-8") as file:
        assert json.load(file) == vocabulary
    return len(vocabulary)


def make_model(rows):
    torch.manual_seed(20)
    model = transformers.RobertaModel(transformers.RobertaConfig(
        vocab_size=rows, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER,
        max_position_embeddings=LONGEST + 2, type_vocab_size=1, layer_norm_eps=1e-5, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.3), add_pooling_layer=False).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
            elif "LayerNorm" in name:
                parameter.normal_(1, 0.2)
        # The row of padding is no zero row in trained checkpoints either.
        for table in (model.embeddings.word_embeddings, model.embeddings.position_embeddings):
            table.weight[1].normal_(0, 0.3)
    return model


def tidy(out):
    """The files as saved, but smaller and without the folder's name."""
    for name, indent in (("tokenizer.json", None), ("vocab.json", None), ("config.json", 1)):
        with open(os.path.join(out, name), encoding="utf-8") as file:
            value = json.load(file)
        value.pop("_name_or_path", None)
        with open(os.path.join(out, name), "w", encoding="utf-8") as file:
            json.dump(value, file, ensure_ascii=False, indent=indent, separators=(",", ": " if indent else ":"))
    os.chmod(os.path.join(out, "model.safetensors"), 0o644)


def rounded(values, digits):
    return [float(numpy.format_float_positional(v, precision=digits, unique=False, trim="-")) for v in values.tolist()]


def main():
    out = sys.argv[1]
    os.makedirs(out)
    with open(os.path.join(HERE, "..", "data", "demo.json"), encoding="utf-8") as file:
        demo = json.load(file)["cases"]
    with open(os.path.join(HERE, "..", "data", "hf-xlmr", "expected.json"), encoding="utf-8") as file:
        texts = [case["text"] for case in json.load(file)["cases"]]
    texts = [text for text in texts if not text.startswith(("query: ", "passage: "))]
    texts += [text for text in FURTHER if text not in texts]
    sentences = [case[key] for case in demo for key in ("text", "reference")]
    rows = train(sentences, out)
    make_model(rows).save_pretrained(out, safe_serialization=True)
    encoder = SentenceTransformer(modules=[models.Transformer(out, max_seq_length=LONGEST),
                                           models.Pooling(WIDTH, pooling_mode="mean"), models.Normalize()], device="cpu")
    encoder.save(out, create_model_card=False)  # adds a pooler, which published files have and nobody uses
    tidy(out)
    encoder = SentenceTransformer(out, device="cpu")

    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert type(tokenizer) is transformers.RobertaTokenizerFast
    # Marks written in a text are text: the same tokenizer without its added tokens.
    bare = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(os.path.join(out, "vocab.json"),
                                                               os.path.join(out, "merges.txt")))
    bare.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

    def ids_of(text):
        ids = [0] + bare.encode(text).ids + [2]
        if not any(mark in text for mark in MARKS + ["<mask>"]):
            assert ids == tokenizer(text, truncation=False)["input_ids"], text
        return ids

    model = transformers.RobertaModel.from_pretrained(out, add_pooling_layer=False).double().eval()
    cases, largest = [], 0.0
    for text in texts:
        ids = ids_of(text)
        if len(ids) > LONGEST:
            ids = ids[:LONGEST - 1] + [2]
        assert ids == tokenizer(text, truncation=True, max_length=LONGEST)["input_ids"]
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        pooled = states.mean(0)
        pooled = pooled / pooled.norm()
        largest = max(largest, float(numpy.abs(pooled.numpy() - encoder.encode(text)).max()))
        cases.append({"text": text, "ids": ids, "first_row": rounded(states[0], 9), "last_row": rounded(states[-1], 9),
                      "embedding": rounded(pooled, 10)})
    expected = {
        "about": "distilroberta-like: RoBERTa encoder, byte-level BPE, mean pooling over all tokens, normalised; longer text is "
                 "cut to 128 tokens; edge_texts are not cut",
        "computed": f"float64, transformers {transformers.__version__}, tokenizers {tokenizers.__version__}",
        "largest_difference_to_sentence_transformers": float(f"{largest:.2g}"),
        "cases": cases, "edge_texts": [{"text": text, "ids": ids_of(text)} for text in EDGES]}
    with open(os.path.join(out, "expected.json"), "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(
            f" {json.dumps(key)}: " + ("[\n  " + ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in value) + "\n ]"
                                       if isinstance(value, list) else json.dumps(value, ensure_ascii=False))
            for key, value in expected.items()) + "\n}\n")
    print(rows, "pieces;", len(cases), "cases;", len(EDGES), "edge texts; to sentence-transformers", largest)


if __name__ == "__main__":
    main()
