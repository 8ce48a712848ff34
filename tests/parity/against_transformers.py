#!/usr/bin/env python3
"""Holds imports of random checkpoints against the transformers library itself.

    tests/parity/against_transformers.sh [--only WORDS] [--keep FOLDER] [--seed N]

For every variant of every family: a small random model and its own vocabulary, saved by the library as people save
them; `koine-model import`; then the library in float64 against Koine in f32: token ids, all encoder rows and teacher-
forced logits (through `koine-model verify`), greedy ids, beam search with its scores, and vectors (through a server).
One line a variant with the largest differences; last line 'N passed, N failed'; the exit code is 1 if anything failed.

Where the library's two tokenizers of one folder disagree about a text, Koine must agree with either. A special token
written in a text is ordinary text to Koine and not to the library: no text here has one.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
warnings.filterwarnings("ignore")

import grpc  # noqa: E402
import grpc_tools  # noqa: E402
import peft  # noqa: E402
import sentence_transformers as st  # noqa: E402
import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402
import torch  # noqa: E402
import transformers as tf  # noqa: E402
from grpc_tools import protoc  # noqa: E402

tf.logging.set_verbosity_error()
tf.logging.disable_progress_bar()
torch.set_num_threads(1)



def current_beam_search():
    """Beam search of this version ends as that of the current ones, which Koine follows.

    Since 4.50 a hypothesis that has just ended no longer counts among those that could still improve, and at the last
    step the best `beam` continuations are taken, ended or not.
    """
    process, hypotheses = tf.BeamSearchScorer.process, tf.generation.beam_search.BeamHypotheses
    done = hypotheses.is_done

    def patched_process(self, input_ids, next_scores, next_tokens, next_indices, eos_token_id=None, **rest):
        ended = (next_tokens.unsqueeze(-1) == torch.as_tensor(eos_token_id).flatten()).any(-1)
        kept = self._beam_hyps[0]
        kept.live_best = next_scores[0].masked_fill(ended[0], -math.inf).max().item()
        if input_ids.shape[-1] + 1 == kept.max_length:
            next_scores = next_scores.clone()
            next_scores[:, self.num_beams:] = -math.inf
        return process(self, input_ids, next_scores, next_tokens, next_indices, eos_token_id=eos_token_id, **rest)

    def patched_done(self, best_sum_logprobs, cur_len, decoder_prompt_len=0):
        return done(self, self.live_best, cur_len, decoder_prompt_len)

    tf.BeamSearchScorer.process, hypotheses.is_done = patched_process, patched_done


LOGITS = ROWS = SCORES = 1e-4
VECTORS = 1e-5
STEPS = 12  # max_new_tokens

TEXTS = [
    "Save the file before closing.",
    "Die Überprüfung läuft noch: 3 von 12 (25 %).",
    "Файл не найден. Проверьте путь!",
    "没有找到文件，请检查您的输入。",
    "Deploy 🚀 now 👩\u200d💻, s'il vous plaît…",
    "mixed Файл file 文件 ملف फ़ाइल ファイル",
    "zero\u200bwidth\u200djoiner\ufeff soft\u00adhyphen",
    "ﬁle ① ℡ Ａ１ ｶﾞ ½ ㎏ e\u0301 Å ỉ",
    " leading  double \t tab\nnewline \u00a0nbsp\u3000wide ",
    "1,234.56 — “quotes” ‘x’ a_b-c/d <b>it's</b> don't [x]",
    "İstanbul ĞÜŞ ẞß ΣΑΣ Ǆ ıI",
    "\u0007bell \u0085next \u2028line a\u0301\u0327b",
    "under▁score ▁ ▁▁x ﷺ ㍿㌔ 𝔘𝔫𝔦 𠜎",
    "ไทย 한국어 한 क्‍ष עברית ٣٫١٤ ١٬٢",
    "supercalifragilistic" * 8,
]
LONG = "Der Server ist nicht erreichbar, the server cannot be reached. " * 40
BEAMS = [(1.0, False), (0.6, True), (0.6, False), (1.4, "never")]


def corpus():
    lines = []
    for line in (ROOT / "deploy" / "demo_model" / "test.jsonl").read_text(encoding="utf-8").splitlines():
        sentence = json.loads(line)
        lines += [(code, sentence[code]) for code in ("en", "de", "fr", "es", "ru", "zh")]
    return lines


class Vocabularies:
    """Small vocabularies trained on the demo model's test sentences, each once."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.lines = corpus()

    def sentencepiece(self, name, languages=None, **options):
        model = self.folder / f"{name}.model"
        if not model.exists():
            settings = dict(vocab_size=620, character_coverage=0.985, model_type="unigram", hard_vocab_limit=False,
                            minloglevel=2)
            settings.update(options)
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([text for code, text in self.lines if languages is None or code in languages]),
                model_prefix=str(self.folder / name), **settings)
        return str(model)

    def fairseq(self):
        return self.sentencepiece("fairseq")

    def bpe(self):
        return self.sentencepiece("bpe", model_type="bpe", byte_fallback=True, vocab_size=900)

    def t5(self, **options):
        return self.sentencepiece("t5" + "".join(options), pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **options)

    def wordpiece(self, lower, **options):
        path = self.folder / f"wordpiece-{lower}.txt"
        if not path.exists():
            trained = tokenizers.BertWordPieceTokenizer(lowercase=lower, **options)
            trained.train_from_iterator([text for _, text in self.lines], vocab_size=1200, show_progress=False)
            trained.save_model(str(self.folder), f"wordpiece-{lower}")
            (self.folder / f"wordpiece-{lower}-vocab.txt").rename(path)
        return str(path)


def randomise(model, scale=3.0):
    """Weights of a size at which logits and hidden rows differ visibly from id to id."""
    config = model.config
    width = getattr(config, "d_model", None) or config.hidden_size
    t5 = config.model_type in ("t5", "mt5")
    for name, values in model.named_parameters():
        if "embed_positions" in name and config.model_type != "mbart":
            continue  # computed
        with torch.no_grad():
            drawn = torch.randn(values.shape, dtype=torch.float64)
            norm = "norm" in name.lower() and values.dim() == 1
            if norm and name.endswith("weight"):
                last = re.search(r"coder\.(layer_norm|final_layer_norm)\.weight", name)
                drawn = (1 + 0.2 * drawn) * (scale if last and "decoder" in name else 1)
            elif norm:
                drawn = 0.3 * drawn
            elif "relative_attention_bias" in name:
                pass
            elif values.dim() == 1:
                drawn = 0.2 * drawn
            elif "position" in name or "token_type" in name:
                drawn = 0.5 * drawn
            elif re.search(r"shared|embed_tokens|word_embeddings", name):
                drawn = drawn * (1 if not getattr(config, "scale_embedding", False) else width**-0.5)
            elif t5 and name.endswith((".q.weight", "EncDecAttention.q.weight")):
                drawn = drawn * (width * config.d_kv) ** -0.5
            elif "lm_head" in name:
                drawn = drawn * width**-0.5
            else:
                drawn = drawn * values.shape[-1] ** -0.5
            values.copy_(drawn)
    if config.is_encoder_decoder:
        head = model.get_output_embeddings().weight
        with torch.no_grad():
            if t5 and not config.tie_word_embeddings:
                head *= scale
            head[config.eos_token_id] *= 2  # so that some translations end
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape))
    return model


@dataclasses.dataclass
class Pair:
    """A direction, as requests name it, and what the library's decoder starts with."""

    source: str = ""
    target: str = ""
    start: int = 0
    forced: int | None = None


@dataclasses.dataclass
class Case:
    """What one variant is: a saved checkpoint and the library's own models of it."""

    folder: pathlib.Path
    model: object  # float64
    ids: object  # (text, pair, max_length) -> list of possible lists of ids
    pairs: list = dataclasses.field(default_factory=lambda: [Pair()])
    arguments: list = dataclasses.field(default_factory=list)  # of koine-model import
    adapter: pathlib.Path | None = None
    adapter_languages: list = dataclasses.field(default_factory=list)
    vector: object = None  # (text, prompt) -> numbers; the mean of the encoder's rows where None
    prompts: list = dataclasses.field(default_factory=lambda: [""])
    limit: int = 0  # longest source that the library's tokenizer cuts to; 0: not tried
    decode: object = None  # ids -> possible texts
    pieces: int = 0  # ids of the tokenizer: rows of the table after them are never generated


SAVING = {
    "": {},
    "sharded": {"max_shard_size": "40KB"},
    "bin": {"safe_serialization": False},
    "sharded bin": {"safe_serialization": False, "max_shard_size": "40KB"},
}


def save(model, folder, saving="", dtype=torch.float32, generation=None):
    if generation:
        model.generation_config.update(**generation)
    model.to(dtype).save_pretrained(folder, **SAVING[saving])


def reload(kind, folder):
    return kind.from_pretrained(folder, torch_dtype=torch.float64).double().eval()


def tokenizers_of(folder, fast=True, **arguments):
    loaded = [tf.AutoTokenizer.from_pretrained(folder, use_fast=False, **arguments)]
    if fast:
        loaded.append(tf.AutoTokenizer.from_pretrained(folder, use_fast=True, **arguments))
    return loaded


def ids_by(loaded, prepare=None, after=None):
    def ids(text, pair, limit=None):
        found = []
        for one in loaded:
            if prepare:
                prepare(one, pair)
            given = after(text, pair) if after else text
            lengths = {"truncation": True, "max_length": limit} if limit else {}
            found.append(one(given, **lengths)["input_ids"])
        return found

    return ids


def pieces_of(loaded):
    tags = getattr(loaded[0], "lang_token_to_id", {})  # M2M-100's are in no vocabulary
    return max([*loaded[0].get_vocab().values(), *tags.values()]) + 1


def decode_by(loaded):
    # The library spells pieces of one byte out ("<0x32>") where its tokenizer has no rule for them.
    def byte(found):
        return chr(int(found[1], 16))

    tags = set(getattr(loaded[0], "lang_token_to_id", {}).values())
    return lambda ids: [re.sub(r"<0x([0-7][0-9A-F])>", byte, one.decode([i for i in ids if i not in tags],
                                                                    skip_special_tokens=True,
                                                                    clean_up_tokenization_spaces=clean))
                        for one in loaded for clean in (False, True)]


# --------------------------------------------------------------------------------------------------------- families


def nllb(folder, words, saving="", dtype=torch.float32, legacy=False, spm="fairseq", **config):
    tokenizer = tf.NllbTokenizer(getattr(words, spm)(), legacy_behaviour=legacy, src_lang="eng_Latn")
    return m2m_like(folder, tokenizer, saving, dtype,
                    [("eng_Latn", "deu_Latn"), ("rus_Cyrl", "zho_Hant")],
                    lambda loaded, code: loaded.convert_tokens_to_ids(code), True, **config)


def m2m100(folder, words, saving="", dtype=torch.float32, **config):
    spm = words.fairseq()
    pieces = sentencepiece.SentencePieceProcessor(model_file=spm)
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    # Some of the model's pieces are in no dictionary: unknown.
    names += [pieces.id_to_piece(i) for i in range(3, pieces.get_piece_size()) if i % 97 != 0]
    dictionary = folder.parent / "dictionary.json"
    dictionary.write_text(json.dumps({name: i for i, name in enumerate(names)}, ensure_ascii=False))
    tokenizer = tf.M2M100Tokenizer(str(dictionary), spm, src_lang="en")
    return m2m_like(folder, tokenizer, saving, dtype, [("en", "de"), ("ru", "zh")],
                    lambda loaded, code: loaded.get_lang_id(code), False, **config)


def m2m_like(folder, tokenizer, saving, dtype, directions, tag, fast, **settings):
    rows = max(map(tag, [tokenizer] * 4, [code for direction in directions for code in direction])) + 200
    values = dict(vocab_size=rows, d_model=48, encoder_layers=2, decoder_layers=2,
                  encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=80, decoder_ffn_dim=80,
                  max_position_embeddings=128)
    values.update(settings)
    limit, generation = values.pop("limit", 0), values.pop("generation", None)
    model = randomise(tf.M2M100ForConditionalGeneration(tf.M2M100Config(**values)))
    save(model, folder, saving, dtype, generation)
    if limit:
        tokenizer.model_max_length = limit
    tokenizer.save_pretrained(folder)
    loaded = tokenizers_of(folder, fast=fast)

    def prepare(one, pair):
        one.src_lang = pair.source

    pairs = [Pair(source, target, 2, tag(loaded[0], target)) for source, target in directions]
    codes = sorted({code for direction in directions for code in direction})
    return Case(folder, reload(tf.M2M100ForConditionalGeneration, folder), ids_by(loaded, prepare), pairs,
                ["--languages", ",".join(codes)], limit=limit, decode=decode_by(loaded), pieces=pieces_of(loaded))


def mbart(folder, words, saving="", dtype=torch.float32, fifty=True, limit=0, generation=None,
          **settings):
    kind = tf.MBart50Tokenizer if fifty else tf.MBartTokenizer
    tokenizer = kind(words.fairseq(), src_lang="en_XX")
    values = dict(vocab_size=len(tokenizer), d_model=48, encoder_layers=2, decoder_layers=2,
                  encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=80, decoder_ffn_dim=80,
                  max_position_embeddings=130)
    if fifty:
        values["decoder_start_token_id"] = 2
    values.update(settings)
    model = randomise(tf.MBartForConditionalGeneration(tf.MBartConfig(**values)))
    save(model, folder, saving, dtype, generation)
    if limit:
        tokenizer.model_max_length = limit
    tokenizer.save_pretrained(folder)
    loaded = tokenizers_of(folder)

    def prepare(one, pair):
        one.src_lang = pair.source

    pairs = []
    for source, target in [("en_XX", "de_DE"), ("ru_RU", "zh_CN")]:
        tag = loaded[0].convert_tokens_to_ids(target)
        pairs.append(Pair(source, target, 2, tag) if fifty else Pair(source, target, tag, None))
    return Case(folder, reload(tf.MBartForConditionalGeneration, folder), ids_by(loaded, prepare), pairs,
                ["--languages", "en_XX,de_DE,ru_RU,zh_CN"], limit=limit, decode=decode_by(loaded),
                pieces=pieces_of(loaded))


def marian(folder, words, saving="", dtype=torch.float32, targets=(), languages=None, limit=0,
           generation=None, **settings):
    source = words.sentencepiece("marian-source", {"en", "fr"}, vocab_size=400)
    target = words.sentencepiece("marian-target", {"de", "ru"}, vocab_size=500)
    names = ["</s>", "<unk>"] + [f">>{code}<<" for code in targets]
    for file in (source, target):
        pieces = sentencepiece.SentencePieceProcessor(model_file=file)
        names += [name for name in map(pieces.id_to_piece, range(3, pieces.get_piece_size())) if name not in names]
    names.append("<pad>")
    dictionary = folder.parent / "dictionary.json"
    dictionary.write_text(json.dumps({name: i for i, name in enumerate(names)}, ensure_ascii=False))
    tokenizer = tf.MarianTokenizer(source, target, str(dictionary), source_lang="en",
                                   target_lang="mul" if targets else "de")
    pad = len(names) - 1
    values = dict(vocab_size=len(names), d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                  decoder_attention_heads=4, encoder_ffn_dim=80, decoder_ffn_dim=80, max_position_embeddings=128,
                  pad_token_id=pad, decoder_start_token_id=pad, eos_token_id=0, forced_eos_token_id=0,
                  scale_embedding=True, bad_words_ids=[[pad]], activation_function="swish",
                  static_position_embeddings=True)
    values.update(settings)
    model = randomise(tf.MarianMTModel(tf.MarianConfig(**values)))
    save(model, folder, saving, dtype, generation)
    if limit:
        tokenizer.model_max_length = limit
    tokenizer.save_pretrained(folder)
    loaded = tokenizers_of(folder, fast=False)
    if targets:
        pairs = [Pair("en", code, pad) for code in targets]
        ids = ids_by(loaded, after=lambda text, pair: f">>{pair.target}<< {text}")
    else:
        pairs = [Pair(*(languages or ("", "")), pad)]
        ids = ids_by(loaded)
    return Case(folder, reload(tf.MarianMTModel, folder), ids, pairs,
                ["--languages", ",".join(languages)] if languages else [], limit=limit, decode=decode_by(loaded),
                pieces=pieces_of(loaded))


def t5(folder, words, saving="", dtype=torch.float32, multilingual=False, encoder=False, languages=None, limit=0,
       vocabulary=None, legacy=None, extra_ids=20, generation=None, **settings):
    options = {} if legacy is None else {"legacy": legacy}
    tokenizer = tf.T5Tokenizer(words.t5(**(vocabulary or {})), extra_ids=extra_ids, **options)
    values = dict(vocab_size=len(tokenizer) + 11, d_model=48, d_kv=12, d_ff=80, num_layers=2, num_heads=4,
                  decoder_start_token_id=0)
    values.update(settings)
    config = (tf.MT5Config if multilingual else tf.T5Config)(**values)
    kind = {(False, False): tf.T5ForConditionalGeneration, (True, False): tf.MT5ForConditionalGeneration,
            (False, True): tf.T5EncoderModel, (True, True): tf.MT5EncoderModel}[multilingual, encoder]
    if encoder:
        config.is_encoder_decoder = False
    save(randomise(kind(config)), folder, saving, dtype, generation)
    if limit:
        tokenizer.model_max_length = limit
    tokenizer.save_pretrained(folder)
    loaded = tokenizers_of(folder)
    return Case(folder, reload(kind, folder), ids_by(loaded), [Pair(*(languages or ("", "")))],
                ["--languages", ",".join(languages)] if languages else [], limit=limit, decode=decode_by(loaded),
                pieces=pieces_of(loaded))


def encoder(folder, words, saving="", dtype=torch.float32, kind="bert", spm=False, lower=False, head=None, limit=0,
            pooling="", languages=None, tokenizer_options=None, **settings):
    """BERT, XLM-R and RoBERTa with WordPiece or with XLM-R's tokenizer; `head`: the class that is saved."""
    options = tokenizer_options or {}
    if spm:
        tokenizer = tf.XLMRobertaTokenizer(words.fairseq(), **options)
    else:
        tokenizer = tf.BertTokenizer(words.wordpiece(lower), do_lower_case=lower, **options)
    names = {"bert": (tf.BertConfig, tf.BertModel), "roberta": (tf.RobertaConfig, tf.RobertaModel),
             "xlm-roberta": (tf.XLMRobertaConfig, tf.XLMRobertaModel)}[kind]
    values = dict(vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                  intermediate_size=80, max_position_embeddings=130)
    if kind != "bert":
        values.update(bos_token_id=0, pad_token_id=1, eos_token_id=2)
    values.update(settings)
    model = randomise((head or names[1])(names[0](**values)))
    save(model, folder, saving, dtype)
    if limit:
        tokenizer.model_max_length = limit
    tokenizer.save_pretrained(folder)
    # A folder's own class of tokenizer may be another than its model's.
    loaded = [type(tokenizer).from_pretrained(folder)]
    fast = tf.XLMRobertaTokenizerFast if spm else tf.BertTokenizerFast
    loaded.append(fast.from_pretrained(folder))
    model = reload(head or names[1], folder)
    body = getattr(model, kind.replace("xlm-", ""), model)
    vector = None
    if pooling == "cls":
        vector = lambda ids: body(torch.tensor([ids])).last_hidden_state[0, 0]  # noqa: E731
    elif pooling == "pooler":
        vector = lambda ids: body(torch.tensor([ids])).pooler_output[0]  # noqa: E731
    arguments = ["--pooling", pooling] if pooling else []
    arguments += ["--languages", ",".join(languages)] if languages else []
    return Case(folder, body, ids_by(loaded), [Pair(*(languages or ("",)))], arguments, limit=limit,
                vector=(lambda text, ids, prompt: vector(ids)) if vector else None)


def sentence(folder, words, make, modes="mean", dense=None, normalize=True, prompts=None, default=None, length=40,
             include_prompt=True, at_root=True, saving=True, lower_case=False):
    """What sentence-transformers saves around an encoder."""
    inner = make(folder.parent / "inner", words)
    transformer = st.models.Transformer(str(inner.folder), max_seq_length=length, do_lower_case=lower_case)
    width = transformer.get_word_embedding_dimension()
    pooled = st.models.Pooling(width, pooling_mode=modes, include_prompt=include_prompt)
    modules = [transformer, pooled]
    if dense:
        layer = st.models.Dense(pooled.get_sentence_embedding_dimension(), **dense)
        torch.nn.init.normal_(layer.linear.weight, std=width**-0.5)
        modules.append(layer)
    if normalize:
        modules.append(st.models.Normalize())
    model = st.SentenceTransformer(modules=modules, prompts=prompts, default_prompt_name=default, device="cpu")
    model.save(str(folder), safe_serialization=saving)
    model = st.SentenceTransformer(str(folder), device="cpu").double().eval()
    names = [""] + sorted(prompts or {}) + (["none"] if default else [])
    slow = tf.AutoTokenizer.from_pretrained(inner.folder, use_fast=False, model_max_length=length)

    def prompt_of(name):
        return (prompts or {}).get(name or default, "")

    def tokenize(text):
        return model.tokenize([text])["input_ids"][0].tolist()

    def ids(text, pair, limit=None, prompt=""):
        given = prompt_of(prompt) + text
        found = [tokenize(given)]
        given = given.strip().lower() if lower_case else given.strip()
        return found + [slow(given, truncation=True, max_length=length)["input_ids"]]

    def vector(text, ids, prompt):
        if ids == tokenize(prompt_of(prompt) + text):
            return torch.tensor(model.encode(text, prompt=prompt_of(prompt), convert_to_numpy=True))
        with torch.no_grad():
            features = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
            return model(features)["sentence_embedding"][0]

    return Case(folder, model[0].auto_model, ids, vector=vector, prompts=names, limit=length)


def adapted(folder, words, make, targets, task, languages=None, **options):
    """A base model with a PEFT adapter beside it."""
    base = make(folder, words)
    settings = dict(r=4, lora_alpha=8, target_modules=targets, task_type=task, lora_dropout=0.0)
    settings.update(options)
    kind = type(base.model)
    inner = kind.from_pretrained(folder)
    wrapped = peft.get_peft_model(inner, peft.LoraConfig(**settings))
    for name, values in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(values, std=0.3)
    adapter = folder.parent / "tuned"
    wrapped.save_pretrained(adapter)
    base.model = peft.PeftModel.from_pretrained(kind.from_pretrained(folder), adapter).double().eval()
    base.model = base.model.base_model.model  # generate() with the adapter inside
    base.adapter = adapter
    base.adapter_languages = sorted({code for pair in base.pairs for code in (pair.source, pair.target) if code})
    return base


# --------------------------------------------------------------------------------------------------------- variants


def variants():
    f16, bf16 = torch.float16, torch.bfloat16
    table = {}

    def add(name, make, *arguments, refused="", **settings):
        assert name not in table, name
        table[name] = (lambda folder, words: make(folder, words, *arguments, **settings), refused)

    add("nllb", nllb)
    add("nllb legacy order", nllb, legacy=True, limit=60)
    add("nllb bpe with bytes, sharded", nllb, "sharded", spm="bpe")
    add("nllb f16, untied", nllb, dtype=f16, tie_word_embeddings=False)
    add("nllb bf16 bin", nllb, "bin", dtype=bf16, encoder_layers=3, decoder_layers=1)
    add("m2m100", m2m100)
    add("m2m100 unscaled gelu", m2m100, scale_embedding=False, activation_function="gelu")
    add("m2m100 swish, other layers", m2m100, activation_function="swish", encoder_layers=1, decoder_layers=3)
    add("m2m100 gelu_new, odd sizes", m2m100, activation_function="gelu_new", d_model=42, encoder_attention_heads=3,
        decoder_attention_heads=3, encoder_ffn_dim=51, decoder_ffn_dim=51)
    add("m2m100 ffn differ", m2m100, encoder_ffn_dim=64, decoder_ffn_dim=96, refused="decoder_ffn_dim")
    add("m2m100 heads differ", m2m100, encoder_attention_heads=2, refused="decoder_attention_heads")
    add("m2m100 untied, sharded bin", m2m100, "sharded bin", tie_word_embeddings=False)
    add("m2m100 truncated", m2m100, limit=33)
    add("m2m100 own settings", m2m100, generation={"num_beams": 3, "length_penalty": 0.7, "early_stopping": True,
                                                   "max_length": 10})
    for fifty in (True, False):
        name = "mbart50" if fifty else "mbart25"
        add(name, mbart, fifty=fifty)
        add(f"{name} scaled relu", mbart, fifty=fifty, scale_embedding=True, activation_function="relu")
        add(f"{name} limits, bin", mbart, "bin", fifty=fifty, limit=128, encoder_layers=1, decoder_layers=2)
        add(f"{name} f16 sharded, untied", mbart, "sharded", f16, fifty=fifty, tie_word_embeddings=False)
    add("marian", marian)
    add("marian relu, unscaled", marian, activation_function="relu", scale_embedding=False)
    add("marian gelu, target tags", marian, targets=("deu", "rus", "zle"), activation_function="gelu")
    add("marian f16 bin, truncated", marian, "bin", f16, limit=128)
    add("marian no forced end", marian, forced_eos_token_id=None, bad_words_ids=None, decoder_layers=1)
    add("marian own settings", marian, generation={"num_beams": 4, "max_length": 9, "bad_words_ids": [[5], [9], [11]],
                                                   "early_stopping": "never", "forced_eos_token_id": 0})
    add("marian separate vocabularies", marian, share_encoder_decoder_embeddings=False,
        refused="separate vocabularies")
    add("marian languages", marian, languages=("en", "de"))
    add("marian untied", marian, tie_word_embeddings=False)
    add("t5 v1.0", t5)
    add("t5 v1.0 long", t5, limit=400)
    add("t5 v1.1", t5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    add("t5 gated-silu", t5, feed_forward_proj="gated-silu", tie_word_embeddings=False)
    add("t5 gated-relu tied", t5, feed_forward_proj="gated-relu")
    add("t5 gelu", t5, feed_forward_proj="gelu")
    add("t5 gelu_new bf16", t5, dtype=bf16, feed_forward_proj="gelu_new")
    add("t5 silu", t5, feed_forward_proj="silu", tie_word_embeddings=False)
    add("t5 buckets 8 of 20", t5, relative_attention_num_buckets=8, relative_attention_max_distance=20, limit=200)
    add("t5 buckets 64 of 400", t5, relative_attention_num_buckets=64, relative_attention_max_distance=400, limit=500)
    add("t5 buckets 20 of 96", t5, relative_attention_num_buckets=20, relative_attention_max_distance=96, limit=200)
    add("t5 buckets 32 of 18", t5, relative_attention_num_buckets=32, relative_attention_max_distance=18, limit=200)
    add("t5 buckets 17 of 40", t5, relative_attention_num_buckets=17, relative_attention_max_distance=40,
        refused="relative_attention_num_buckets")
    add("t5 layers differ", t5, num_layers=3, num_decoder_layers=1)
    add("t5 wide heads", t5, d_kv=20, num_heads=3)
    add("t5 narrow heads, eps", t5, d_kv=5, num_heads=6, layer_norm_epsilon=1e-3)
    add("t5 new tokenizer, bytes", t5, vocabulary={"byte_fallback": True}, legacy=False)
    add("t5 own settings", t5, generation={"num_beams": 2, "max_new_tokens": 7, "min_new_tokens": 5,
                                           "length_penalty": 2.0}, feed_forward_proj="gated-gelu",
        tie_word_embeddings=False)
    add("t5 bin sharded", t5, "sharded bin")
    add("mt5", t5, multilingual=True, extra_ids=0)
    add("mt5 relu, own head", t5, multilingual=True, extra_ids=0, feed_forward_proj="relu", d_kv=16, num_heads=2)
    add("mt5 f16 sharded", t5, "sharded", f16, multilingual=True, extra_ids=0)
    add("t5 encoder", t5, encoder=True)
    add("mt5 encoder bin", t5, "bin", multilingual=True, encoder=True, feed_forward_proj="gated-gelu")
    add("xlm-r", encoder, kind="xlm-roberta", spm=True, type_vocab_size=1)
    add("xlm-r relu, eps, truncated", encoder, kind="xlm-roberta", spm=True, hidden_act="relu", layer_norm_eps=1e-3,
        max_position_embeddings=66, limit=64, type_vocab_size=1)
    add("xlm-r gelu_new bf16", encoder, kind="xlm-roberta", spm=True, hidden_act="gelu_new", dtype=bf16)
    add("xlm-r for masked words", encoder, kind="xlm-roberta", spm=True, head=tf.XLMRobertaForMaskedLM)
    add("xlm-r cls", encoder, kind="xlm-roberta", spm=True, pooling="cls")
    add("roberta with xlm-r's tokenizer", encoder, kind="roberta", spm=True)
    add("roberta pooler f16 bin", encoder, "bin", f16, kind="roberta", spm=True, pooling="pooler")
    add("bert cased", encoder)
    add("bert uncased", encoder, lower=True, limit=128)
    add("bert uncased, accents kept", encoder, lower=True, tokenizer_options={"strip_accents": False})
    add("bert cased, accents stripped", encoder, tokenizer_options={"strip_accents": True})
    add("bert chinese unsplit", encoder, tokenizer_options={"tokenize_chinese_chars": False})
    add("bert pooler, relu, sharded", encoder, "sharded", pooling="pooler", hidden_act="relu")
    add("bert silu, types, eps", encoder, hidden_act="silu", type_vocab_size=4, layer_norm_eps=1e-5)
    add("bert for pre-training", encoder, head=tf.BertForPreTraining, dtype=bf16)
    add("bert with xlm-r's tokenizer", encoder, spm=True, limit=128)
    xlmr = lambda folder, words: encoder(folder, words, kind="xlm-roberta", spm=True)  # noqa: E731
    minilm = lambda folder, words: encoder(folder, words, spm=True)  # noqa: E731
    bert = lambda folder, words: encoder(folder, words, lower=True)  # noqa: E731
    t5_encoder = lambda folder, words: t5(folder, words)  # noqa: E731
    add("sentences: mean", sentence, minilm)
    add("sentences: mean, raw, bin", sentence, xlmr, normalize=False, saving=False)
    add("sentences: cls", sentence, bert, "cls", length=24)
    add("sentences: max", sentence, xlmr, "max", refused="pooling mode")
    add("sentences: mean_sqrt_len", sentence, xlmr, "mean_sqrt_len_tokens", normalize=False, refused="pooling mode")
    add("sentences: weightedmean", sentence, bert, "weightedmean", normalize=False, refused="pooling mode")
    add("sentences: lasttoken", sentence, xlmr, "lasttoken", refused="pooling mode")
    add("sentences: dense tanh", sentence, xlmr, dense={"out_features": 20}, normalize=False)
    add("sentences: dense identity", sentence, bert, "cls",
        dense={"out_features": 60, "bias": False, "activation_function": torch.nn.Identity()})
    add("sentences: prompts", sentence, minilm, prompts={"query": "query: ", "passage": "passage: "})
    add("sentences: default prompt", sentence, xlmr, prompts={"query": "query: ", "passage": "passage: "},
        default="query")
    add("sentences: prompt left out", sentence, xlmr, prompts={"query": "Represent this: "}, include_prompt=False,
        refused="include_prompt")
    add("sentences: no prompt to leave out", sentence, t5_encoder, include_prompt=False)
    add("sentences: t5", sentence, t5_encoder, dense={"out_features": 30, "bias": False,
                                                       "activation_function": torch.nn.Identity()})
    add("sentences: lower-cased", sentence, lambda folder, words: encoder(folder, words), lower_case=True)
    seq = peft.TaskType.SEQ_2_SEQ_LM
    add("adapter: nllb", adapted, nllb, ["q_proj", "v_proj"], seq)
    add("adapter: m2m100, patterns", adapted, m2m100, ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"], seq,
        rank_pattern={"fc1": 6, "decoder.layers.0.self_attn.q_proj": 2}, alpha_pattern={"fc2": 3}, use_rslora=True)
    add("adapter: mbart50", adapted, mbart, ["q_proj", "fc1"], seq, r=3, lora_alpha=5)
    add("adapter: mt5", adapted, lambda folder, words: t5(folder, words, multilingual=True, languages=("en", "de")),
        ["q", "v", "wi_0", "wi_1", "wo"], seq, rank_pattern={"wo": 2})
    add("adapter: t5", adapted, lambda folder, words: t5(folder, words, languages=("en", "de")), ["q", "k", "v", "o"],
        seq, use_rslora=True, alpha_pattern={"k": 2.5})
    add("adapter: marian", adapted, lambda folder, words: marian(folder, words, languages=("en", "de")),
        ["q_proj", "v_proj"], seq)
    add("adapter: bert", adapted, lambda folder, words: encoder(folder, words, languages=("en",)),
        ["query", "value", "dense"], None, layers_to_transform=[1])
    return table


# -------------------------------------------------------------------------------------------------------- comparing


class Different(Exception):
    pass


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise Different(f"{pathlib.Path(command[0]).name} {command[1]}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


@contextlib.contextmanager
def served(model, pb):
    log = model.parent / "server.log"
    with open(log, "w") as stream:
        process = subprocess.Popen(
            [BIN / "koine-server", "--model", model, "--precision", "f32", "--listen", "127.0.0.1:0", "--http", "off",
             "--drain-delay", "0", "--workers", "1"], stderr=stream, stdout=stream)
    try:
        end = time.time() + 60
        while True:
            found = re.findall(r"listening on (\S+:\d+)", log.read_text())
            if found:
                break
            if process.poll() is not None or time.time() > end:
                raise Different("the server does not start: " + log.read_text()[-600:])
            time.sleep(0.02)
        with grpc.insecure_channel(found[-1]) as channel:
            yield pb.Stub(channel)
    finally:
        process.terminate()
        process.wait()


class Wire:
    """The messages and the stub, made of the proto file by its own compiler."""

    def __init__(self, folder):
        known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
        code = protoc.main(["", f"-I{ROOT / 'proto'}", f"-I{known}", f"--python_out={folder}",
                            f"--grpc_python_out={folder}", "koine/v1/koine.proto", "google/rpc/status.proto"])
        assert code == 0
        sys.path.insert(0, str(folder))
        from koine.v1 import koine_pb2, koine_pb2_grpc  # pylint: disable=import-outside-toplevel

        self.v1, self.Stub = koine_pb2, koine_pb2_grpc.KoineStub


def largest(expected, got):
    expected, got = [float(x) for x in expected], [float(x) for x in got]
    if len(expected) != len(got):
        return math.inf
    worst = 0.0
    for a, b in zip(expected, got):
        difference = abs(a - b)
        worst = math.inf if math.isnan(difference) else max(worst, difference)
    return worst


class Check:
    def __init__(self, case, wire):
        self.case, self.wire = case, wire
        self.adapter = case.adapter.name if case.adapter else ""
        self.worst, self.faults, self.summary = {}, [], ""

    def open(self, model):
        self.folder = model
        self.config = json.loads((model / "model.json").read_text())
        self.decodes = "translate" in self.config["tasks"]

    def note(self, what, difference, allowed, where=""):
        self.worst[what] = max(self.worst.get(what, 0.0), difference)
        if not difference <= allowed:
            self.faults.append(f"{what} differs by {difference:.3g} {where}")

    def ids_of(self, text, pair, prompt="", limit=None):
        extra = {"prompt": prompt} if len(self.case.prompts) > 1 else {}
        return self.case.ids(text, pair, limit, **extra)

    def equal_ids(self, text, possible, got):
        if list(got) not in [list(one) for one in possible]:
            self.faults.append(f"ids of {text[:40]!r}: expected {possible[0]}, got {list(got)}")
        self.worst.setdefault("ids", 0.0)

    def encode_all(self, stub):
        v1 = self.wire.v1
        for pair in self.case.pairs:
            for prompt in self.case.prompts:
                request = v1.EncodeRequest(language=pair.source, adapter=self.adapter, prompt=prompt)
                request.options.token_states = request.options.return_ids = True
                request.options.truncate = True
                for text in TEXTS:
                    request.items.add(text=text)
                answer = stub.Encode(request)
                for text, result in zip(TEXTS, answer.results):
                    if result.status.code:
                        # Nothing but white space and what the tokenizer drops.
                        self.faults.append(f"{text[:30]!r}: {result.status.message}")
                        continue
                    self.equal_ids(text, self.ids_of(text, pair, prompt, self.case.limit), result.ids)
                    ids = list(result.ids)
                    rows = self.rows(ids)
                    self.note("rows", largest(rows.flatten(), result.token_states), ROWS, text[:20])
                    if self.case.vector:
                        vector = self.case.vector(text, ids, prompt)
                    else:
                        vector = rows.mean(0)
                        if self.decodes:
                            vector = vector / vector.norm()
                    self.note("vectors", largest(vector.flatten(), result.embedding), VECTORS, f"{prompt} {text[:20]}")

    def rows(self, ids):
        encoder = self.case.model.get_encoder() if hasattr(self.case.model, "get_encoder") else self.case.model
        with torch.no_grad():
            return encoder(torch.tensor([ids])).last_hidden_state[0]

    def long_text(self, stub):
        """Cut where asked, by the same rule; refused where not."""
        v1, limit = self.wire.v1, self.case.limit
        if not limit:
            return
        for pair in self.case.pairs:
            for prompt in self.case.prompts:
                request = v1.EncodeRequest(language=pair.source, prompt=prompt, items=[v1.EncodeItem(text=LONG)])
                request.options.return_ids = request.options.truncate = True
                result = stub.Encode(request).results[0]
                if result.status.code or not result.truncated:
                    self.faults.append(f"a long text: {result.status.message or 'not cut'}")
                self.equal_ids("a long text", self.ids_of(LONG, pair, prompt, limit), result.ids)
                if self.case.vector is None or len(self.case.prompts) == 1:
                    request.options.token_states = True
                    states = stub.Encode(request).results[0].token_states
                    self.note("rows", largest(self.rows(list(result.ids)).flatten(), states), ROWS, "a long text")
                request.options.truncate = False
                if stub.Encode(request).results[0].status.code == 0:
                    self.faults.append("a text that is too long is not refused")

    def blanks(self, stub):
        v1 = self.wire.v1
        pair = self.case.pairs[0]
        for text in ("", "  \t ", "\u200b\ufeff"):
            if self.decodes:
                request = v1.TranslateRequest(source=pair.source, target=pair.target)
                request.items.add(text=text)
                result = stub.Translate(request).results[0]
                if (result.status.code, result.text, result.finish_reason) != (0, text, v1.FINISH_REASON_EMPTY):
                    self.faults.append(f"blank {text!r}: {result}")
            else:
                request = v1.EncodeRequest(language=pair.source, items=[v1.EncodeItem(text=text)])
                if stub.Encode(request).results[0].status.code == 0:
                    self.faults.append(f"blank {text!r} has a vector")

    def generated(self, sequence):
        ids = sequence.tolist()[1:]
        end = self.case.model.config.eos_token_id
        return ids[: ids.index(end) + 1] if end in ids else ids

    def reference(self, ids, pair, **options):
        settings = dict(max_new_tokens=STEPS, decoder_start_token_id=pair.start, do_sample=False,
                        return_dict_in_generate=True, output_scores=True)
        rows = self.case.model.config.vocab_size
        if self.case.pieces < rows:
            settings["suppress_tokens"] = list(range(self.case.pieces, rows))
        if pair.forced is not None:
            settings["forced_bos_token_id"] = pair.forced
        settings.update(options)
        with torch.no_grad():
            return self.case.model.generate(torch.tensor([ids]), **settings)

    def request(self, pair, texts, **options):
        v1 = self.wire.v1
        request = v1.TranslateRequest(source=pair.source, target=pair.target, source_adapter=self.adapter,
                                      target_adapter=self.adapter)
        request.options.max_tokens = STEPS
        request.options.truncate = True
        request.options.return_ids = request.options.return_scores = True
        for key, value in options.items():
            setattr(request.options, key, value)
        for text in texts:
            request.items.add(text=text)
        return request

    def translate(self, stub):
        v1 = self.wire.v1
        early = {False: v1.EARLY_STOPPING_FALSE, True: v1.EARLY_STOPPING_TRUE, "never": v1.EARLY_STOPPING_NEVER}
        samples = []
        ends = tokens = 0
        for pair in self.case.pairs:
            texts = TEXTS[:6]
            sources = []
            answer = stub.Translate(self.request(pair, texts, beam_size=1))
            for text, result in zip(texts, answer.results):
                if result.status.code:
                    raise Different(f"{text!r}: {result.status.message}")
                ids = list(result.source_ids)
                self.equal_ids(text, self.ids_of(text, pair, limit=self.case.limit), ids)
                sources.append(ids)
                greedy = self.reference(ids, pair, num_beams=1)
                expected = self.generated(greedy.sequences[0])
                got = list(result.hypotheses[0].ids)
                ends += self.case.model.config.eos_token_id in expected
                tokens += len(expected)
                self.note("greedy", 0.0 if got == expected else 1.0, 0.0, f"expected {expected}, got {got}")
                if self.case.decode and got == expected:
                    possible = self.case.decode([one for one in expected if one != pair.forced])
                    if result.hypotheses[0].text not in possible:
                        self.note("text", 1.0, 0.0, f"expected {possible}, got {result.hypotheses[0].text!r}")
                samples.append(self.sample(ids, pair, [pair.start] + expected[:-1]))
            for penalty, stop in BEAMS:
                answer = stub.Translate(self.request(pair, texts[:3], beam_size=4, num_hypotheses=4,
                                                     length_penalty=penalty, early_stopping=early[stop]))
                for ids, result in zip(sources, answer.results):
                    beam = self.reference(ids, pair, num_beams=4, num_return_sequences=4, length_penalty=penalty,
                                          early_stopping=stop)
                    where = f"penalty {penalty}, early stopping {stop}"
                    self.note("scores", largest(beam.sequences_scores, [h.score for h in result.hypotheses]), SCORES,
                              where)
                    expected = [self.generated(one) for one in beam.sequences]
                    got = [list(one.ids) for one in result.hypotheses]
                    self.note("beams", 0.0 if got == expected else 1.0, 0.0, f"{where}: expected {expected}, got {got}")
        (self.folder / "samples.json").write_text(json.dumps(samples))
        table = run(BIN / "koine-model", "verify", self.folder, "--tolerance", LOGITS)
        found = re.findall(r"^sample \d+.*?\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)$", table, re.MULTILINE)
        if len(found) != len(samples):
            raise Different(table)
        self.note("logits", max(float(one[2]) for one in found), LOGITS)
        self.summary = f"{ends} of {len(samples)} end, {tokens / len(samples):.1f} tokens"

    def defaults(self, stub):
        """What a request that says nothing gets, where the checkpoint's own settings say it."""
        if not (self.case.folder / "generation_config.json").exists():
            return
        settings = json.loads((self.case.folder / "generation_config.json").read_text())
        if "max_length" not in settings and "max_new_tokens" not in settings:
            return
        for pair in self.case.pairs:
            request = self.request(pair, TEXTS[:3])
            request.options.ClearField("max_tokens")
            for text, result in zip(TEXTS, stub.Translate(request).results):
                lengths = {"max_new_tokens": settings.get("max_new_tokens")}
                expected = self.generated(self.reference(list(result.source_ids), pair, **lengths).sequences[0])
                got = list(result.hypotheses[0].ids)
                self.note("beams", 0.0 if got == expected else 1.0, 0.0, f"defaults: expected {expected}, got {got}")

    def sample(self, ids, pair, decoder_ids):
        with torch.no_grad():
            answer = self.case.model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([decoder_ids]))
        logits = answer.logits[0].tolist()
        return {"source": pair.source, "target": pair.target, "source_adapter": self.adapter,
                "target_adapter": self.adapter, "source_ids": ids, "decoder_ids": decoder_ids,
                "encoder_last_row": answer.encoder_last_hidden_state[0, -1].tolist(),
                "logits_sum": [sum(step) for step in logits],
                "logits_top4": [[[i, value] for i, value in enumerate(step)] for step in logits]}


COLUMNS = ["ids", "rows", "logits", "greedy", "beams", "scores", "vectors", "text"]


def check(make, refused, seed, folder, words, wire):
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32)
    folder.mkdir()
    case = make(folder / "checkpoint", words)
    model = folder / "koine"
    command = [BIN / "koine-model", "import", case.folder, "--out", model, "--name", "m", *case.arguments]
    checking = Check(case, wire)
    if refused:
        try:
            run(*command)
            raise Different(f"is not refused ({refused})")
        except Different as error:
            if refused not in str(error) or "\n" in str(error):
                raise
            checking.summary = "refused: " + str(error).split(": ", 3)[-1]
            return checking
    run(*command)
    checking.open(model)
    if case.adapter:
        run(BIN / "koine-model", "add-adapter", model, ",".join(case.adapter_languages), case.adapter)
    torch.set_default_dtype(torch.float64)  # the library's masks are of the default type
    with served(model, wire) as stub:
        if "encode" in checking.config["tasks"]:
            checking.encode_all(stub)
            checking.long_text(stub)
        checking.blanks(stub)
        if checking.decodes:
            checking.translate(stub)
            checking.defaults(stub)
    return checking


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="variants whose name holds one of these words")
    parser.add_argument("--keep", help="folder for the checkpoints and models (default: a temporary one)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=3, help="faults shown of each variant")
    options = parser.parse_args()
    chosen = {name: make for name, make in variants().items()
              if not options.only or any(word in name for word in options.only)}
    passed = failed = 0
    current_beam_search()
    print(f"{'variant':34}" + "".join(f"{column:>10}" for column in COLUMNS))
    with tempfile.TemporaryDirectory(prefix="koine-") as temporary:
        place = pathlib.Path(options.keep or temporary)
        for part in ("vocabularies", "wire"):
            (place / part).mkdir(parents=True, exist_ok=True)
        words, wire = Vocabularies(place / "vocabularies"), Wire(place / "wire")
        for name, (make, refused) in chosen.items():
            folder = place / re.sub(r"[^a-z0-9.]+", "-", name)
            shutil.rmtree(folder, ignore_errors=True)
            faults, worst, summary = [], {}, ""
            try:
                checking = check(make, refused, options.seed, folder, words, wire)
                faults, worst, summary = checking.faults, checking.worst, checking.summary
            except (Different, grpc.RpcError) as error:
                faults = [str(error)]
            shown = "".join(f"{worst[c]:>10.1e}" if c in worst and worst[c] else f"{'=' if c in worst else '-':>10}"
                            for c in COLUMNS)
            print(f"{name:34}{shown}  {summary}{'  FAILED' if faults else ''}", flush=True)
            for fault in faults[: options.faults]:
                print(f"    {fault}", flush=True)
            passed, failed = passed + (not faults), failed + bool(faults)
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
