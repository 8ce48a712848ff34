#include "model_loader/model/model.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/format/folder.h"
#include "model_loader/model/arena.h"
#include "model_loader/safetensors/safetensors.h"
#include "model_loader/safetensors/strict_json.h"
#include "model_loader/tokenizer/load_tokenizer.h"

namespace koine::model_loader {

namespace fs = std::filesystem;

namespace {

// Heap of a SentencePiece model, estimated. Measured with mallinfo2 around loading: 1,511 to 1,589 KB of heap for
// 8,000-piece models of 361 to 383 KB.
int64_t TokenizerHeap(const fs::path& path) {
  constexpr double kHeapPerFileByte = 4.3;
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(kHeapPerFileByte * static_cast<double>(bytes));
}

// What the key `tokenizer` describes, with files in `folder`; where the table of `file` is a slice (vocab.ids), in the
// numbers of its rows.
absl::StatusOr<std::shared_ptr<const Tokenizer>> DescribedTokenizer(const fs::path& folder,
                                                                    const TokenizerConfig& config,
                                                                    const SafetensorsFile& file, int32_t unknown_row,
                                                                    int64_t* heap) {
  *heap = 0;
  for (const std::string& name : config.files) *heap += TokenizerHeap(folder / name);
  const TensorView* ids = file.Find("vocab.ids");
  if (ids == nullptr) {
    auto whole = LoadTokenizer(folder.string(), config);
    if (!whole.ok()) return whole.status();
    return std::shared_ptr<const Tokenizer>(*std::move(whole));
  }
  std::vector<int32_t> rows(static_cast<size_t>(ids->elements()));
  std::memcpy(rows.data(), ids->data.data(), ids->data.size());  // I32, checked by the table of tensors
  auto sliced = LoadSlicedTokenizer(folder.string(), config, rows, unknown_row);
  if (!sliced.ok())
    return absl::Status(sliced.status().code(), absl::StrCat(file.name(), ": ", sliced.status().message()));
  return std::shared_ptr<const Tokenizer>(*std::move(sliced));
}

std::vector<LoadedTensor> Loaded(const SafetensorsFile& file, const std::vector<TensorSpec>& specs) {
  std::vector<LoadedTensor> loaded;
  for (const TensorSpec& spec : PresentTensors(file, specs)) {
    const TensorView& tensor = *file.Find(spec.name);
    loaded.push_back({spec.name, spec.component, tensor.shape, tensor.dtype, tensor.elements(),
                      static_cast<int64_t>(tensor.data.size()), spec.scales});
  }
  return loaded;
}

// Binds the tensors of one file to views, layer by layer. Names are those of FORMAT.md.
class Binder {
 public:
  Binder(const ModelConfig& config, const SafetensorsFile& file, ArenaBuilder* builder)
      : config_(config), architecture_(config.architecture), file_(file), builder_(*builder) {}

  absl::Status status() const { return status_; }

  // `names` stacked by rows; the bias, where there is one, from the same names.
  void Linear(const std::vector<std::string>& names, kernels::Linear* out) {
    std::vector<std::string> weights;
    std::vector<std::string> biases;
    for (const std::string& name : names) {
      weights.push_back(name + ".weight");
      if (file_.Find(name + ".bias") != nullptr) biases.push_back(name + ".bias");
    }
    // Where every head is the language's, the shared projections have no matrix; their output bias still counts.
    if (file_.Find(weights.front()) != nullptr) Keep(builder_.Matrix(weights, &out->weight));
    if (!biases.empty()) builder_.Vector(biases, &out->bias);
  }

  void Norm(const std::string& name, kernels::NormWeights* out) {
    builder_.Vector({name + ".weight"}, &out->weight);
    if (file_.Find(name + ".bias") != nullptr) builder_.Vector({name + ".bias"}, &out->bias);
  }

  void SelfAttention(const std::string& prefix, int heads, kernels::SelfAttentionWeights* out) {
    out->heads = heads;
    Linear({prefix + ".q", prefix + ".k", prefix + ".v"}, &out->qkv);
    Linear({prefix + ".o"}, &out->o);
  }
  void CrossAttention(const std::string& prefix, int heads, kernels::CrossAttentionWeights* out) {
    out->heads = heads;
    Linear({prefix + ".q"}, &out->q);
    Linear({prefix + ".k", prefix + ".v"}, &out->kv);
    Linear({prefix + ".o"}, &out->o);
  }

  void NormsAndFeedForward(const std::string& layer, bool decoder, kernels::LayerWeights* out) {
    Norm(layer + ".self_attn_norm", &out->self_norm);
    if (decoder) Norm(layer + ".cross_attn_norm", &out->cross_norm);
    Norm(layer + ".ffn_norm", &out->ffn_norm);
    if (architecture_.gated_ffn) {
      Linear({layer + ".ffn.gate", layer + ".ffn.up"}, &out->ffn.up);
    } else {
      Linear({layer + ".ffn.up"}, &out->ffn.up);
    }
    Linear({layer + ".ffn.down"}, &out->ffn.down);
  }

  // What the shared file provides of one stack.
  void SharedStack(bool decoder, kernels::StackWeights* out) {
    const std::string side = decoder ? "decoder" : "encoder";
    const auto& owners = decoder ? architecture_.decoder_layers : architecture_.encoder_layers;
    out->layers.resize(owners.size());
    for (size_t i = 0; i < owners.size(); ++i) {
      const std::string layer = absl::StrCat(side, ".layers.", i);
      if (owners[i] == kernels::LayerOwner::kLanguageLayer) continue;
      NormsAndFeedForward(layer, decoder, &out->layers[i]);
      if (owners[i] == kernels::LayerOwner::kLanguageAttention) continue;
      SelfAttention(layer + ".self_attn", architecture_.shared_heads(), &out->layers[i].self);
      if (decoder) CrossAttention(layer + ".cross_attn", architecture_.shared_heads(), &out->layers[i].cross);
    }
    if (architecture_.final_norm) Norm(side + ".final_norm", &out->final_norm);
    if (architecture_.embedding_norm) Norm(side + ".embedding_norm", &out->embedding_norm);
    if (config_.positions.type == PositionType::kLearned) {
      builder_.Vector({side + ".positions.weight"}, &out->positions);
    }
    if (config_.positions.type == PositionType::kRelativeBuckets) {
      const int64_t heads = architecture_.heads;
      const int64_t longest = architecture_.max_positions;
      builder_.Derived(
          side + ".relative_bias.weight", heads * kernels::RelativeStride(!decoder, longest),
          [positions = config_.positions, heads, longest, decoder](const float* weight, float* table) {
            kernels::RelativeBiases(weight, heads, !decoder, positions.buckets, positions.max_distance, longest, table);
          },
          &out->relative_bias);
    }
  }

  void Pooling(kernels::PoolingWeights* out) {
    const std::optional<PoolingDense>& dense = config_.pooling.dense;
    if (!dense.has_value()) return;
    Linear({"pooling.dense"}, &out->dense);
    out->tanh = dense->activation == DenseActivation::kTanh;
  }

  // What a language's file provides of one stack: own heads and own layers.
  void OwnStack(bool decoder, std::vector<kernels::LayerWeights>* out) {
    const std::string side = decoder ? "decoder" : "encoder";
    const auto& owners = decoder ? architecture_.decoder_layers : architecture_.encoder_layers;
    out->resize(owners.size());
    for (size_t i = 0; i < owners.size(); ++i) {
      const std::string layer = absl::StrCat(side, ".layers.", i);
      kernels::LayerWeights& own = (*out)[i];
      if (owners[i] == kernels::LayerOwner::kShared) {
        if (architecture_.language_heads == 0) continue;
        SelfAttention(layer + ".self_attn.own", architecture_.language_heads, &own.self);
        if (decoder) CrossAttention(layer + ".cross_attn.own", architecture_.language_heads, &own.cross);
        continue;
      }
      SelfAttention(layer + ".self_attn", architecture_.heads, &own.self);
      if (decoder) CrossAttention(layer + ".cross_attn", architecture_.heads, &own.cross);
      if (owners[i] == kernels::LayerOwner::kLanguageLayer) NormsAndFeedForward(layer, decoder, &own);
    }
  }

  void Table(kernels::LanguageWeights* out) {
    if (config_.kind == ModelKind::kEncoder) {
      builder_.Rows("embedding.weight", &out->embedding.rows);
    } else if (architecture_.tied_output) {
      Keep(builder_.Matrix({"embedding.weight"}, &out->output.weight));
    } else {
      builder_.Rows("embedding.weight", &out->embedding.rows);
      Keep(builder_.Matrix({"output.weight"}, &out->output.weight));
    }
    if (file_.Find("output.bias") != nullptr) builder_.Vector({"output.bias"}, &out->output.bias);
  }

  void Adapter(const AdapterConfig& adapter, kernels::AdapterWeights* out) {
    out->activation = adapter.activation;
    out->encoder.resize(architecture_.encoder_layers.size());
    out->decoder.resize(architecture_.decoder_layers.size());
    for (const bool decoder : {false, true}) {
      auto& layers = decoder ? out->decoder : out->encoder;
      for (size_t i = 0; i < layers.size(); ++i) {
        AdapterLayer(adapter, absl::StrCat(decoder ? "decoder" : "encoder", ".layers.", i), &layers[i]);
      }
    }
    for (const auto& [projection, pair] : adapter.pairs) {
      if (file_.Find(projection + ".lora.a") != nullptr) continue;
      Keep(absl::InvalidArgumentError(
          absl::StrCat(file_.name(), ": the adapter's \"pairs\" names ", projection, ", which has no pair here")));
    }
  }

 private:
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  void Scale(const std::string& name, const float** out) {
    if (file_.Find(name) != nullptr) builder_.Vector({name}, out);
  }

  void LowRank(const AdapterConfig& adapter, const std::string& projection, kernels::LowRank* out) {
    if (file_.Find(projection + ".lora.a") == nullptr) return;
    Keep(builder_.Matrix({projection + ".lora.a"}, &out->a));
    Keep(builder_.Matrix({projection + ".lora.b"}, &out->b));
    out->scale = static_cast<float>(adapter.PairScale(projection));
  }

  void AdapterLayer(const AdapterConfig& adapter, const std::string& layer, kernels::LayerAdapter* out) {
    switch (adapter.kind) {
      case AdapterKind::kNone:
        return;
      case AdapterKind::kScale:
        Scale(layer + ".self_attn.scale", &out->self_scale);
        Scale(layer + ".cross_attn.scale", &out->cross_scale);
        Scale(layer + ".ffn.scale", &out->ffn_scale);
        return;
      case AdapterKind::kBottleneck:
        Norm(layer + ".adapter.norm", &out->norm);
        Linear({layer + ".adapter.down"}, &out->down);
        Linear({layer + ".adapter.up"}, &out->up);
        return;
      case AdapterKind::kLora:
        LowRank(adapter, layer + ".self_attn.q", &out->self_q);
        LowRank(adapter, layer + ".self_attn.k", &out->self_k);
        LowRank(adapter, layer + ".self_attn.v", &out->self_v);
        LowRank(adapter, layer + ".self_attn.o", &out->self_o);
        LowRank(adapter, layer + ".cross_attn.q", &out->cross_q);
        LowRank(adapter, layer + ".cross_attn.k", &out->cross_k);
        LowRank(adapter, layer + ".cross_attn.v", &out->cross_v);
        LowRank(adapter, layer + ".cross_attn.o", &out->cross_o);
        LowRank(adapter, layer + ".ffn.up", &out->ffn_up);
        LowRank(adapter, layer + ".ffn.gate", &out->ffn_gate);
        LowRank(adapter, layer + ".ffn.down", &out->ffn_down);
        return;
    }
  }

  const ModelConfig& config_;
  const kernels::TransformerConfig& architecture_;
  const SafetensorsFile& file_;
  ArenaBuilder& builder_;
  absl::Status status_;
};

std::string ArenaName(const ModelConfig& config, const std::string& part) {
  return absl::StrCat("koine:", config.name, ":", part);
}

// A tied table has one set of bytes: embedding rows are read from the packed output projection.
void TieEmbedding(const ModelConfig& config, kernels::Precision precision, kernels::LanguageWeights* weights) {
  if (config.kind == ModelKind::kEncoderDecoder && config.architecture.tied_output) {
    weights->embedding.packed = weights->output.weight;
  }
  weights->embedding.precision = precision;
}

}  // namespace

Adapter::~Adapter() = default;
Language::~Language() = default;
Model::Model() = default;
Model::~Model() = default;

absl::StatusOr<const Adapter*> Language::FindAdapter(std::string_view name) const {
  const auto found = adapters_.find(name);
  if (found != adapters_.end()) return found->second.get();
  return absl::NotFoundError(absl::StrCat("language ", code(), " has no adapter \"", std::string(name), "\"; it has: ",
                                          adapters_.empty() ? "none" : absl::StrJoin(adapter_names(), ", ")));
}

std::vector<std::string> Language::adapter_names() const {
  std::vector<std::string> names;
  for (const auto& [name, adapter] : adapters_) names.push_back(name);
  return names;
}

int64_t Adapter::mapped_bytes() const { return arena_ == nullptr ? 0 : static_cast<int64_t>(arena_->bytes()); }
int64_t Adapter::resident_bytes() const {
  return arena_ == nullptr ? 0 : static_cast<int64_t>(arena_->ResidentBytes());
}

int64_t Language::mapped_bytes() const {
  int64_t bytes = arena_ == nullptr ? 0 : static_cast<int64_t>(arena_->bytes());
  for (const auto& [name, adapter] : adapters_) bytes += adapter->mapped_bytes();
  return bytes;
}

int64_t Language::resident_bytes() const {
  int64_t bytes = arena_ == nullptr ? 0 : static_cast<int64_t>(arena_->ResidentBytes());
  for (const auto& [name, adapter] : adapters_) bytes += adapter->resident_bytes();
  return bytes;
}

uint64_t Language::checksum() const { return arena_ == nullptr ? 0 : arena_->Checksum(); }

int64_t Model::shared_mapped_bytes() const { return static_cast<int64_t>(arena_->bytes()); }
int64_t Model::shared_resident_bytes() const { return static_cast<int64_t>(arena_->ResidentBytes()); }
const void* Model::shared_address() const { return arena_->data(); }
uint64_t Model::shared_checksum() const { return arena_->Checksum(); }

absl::StatusOr<std::shared_ptr<const Language>> Model::FindLanguage(std::string_view code) const {
  const auto found = names_.Find(code);
  if (!found.ok()) return found.status();
  return *std::find_if(languages_.begin(), languages_.end(), [&](const auto& l) { return l->code() == *found; });
}

void Model::Pool(kernels::Workspace& workspace, const float* rows, int64_t tokens, bool normalize, float* out) const {
  const Pooling& pooling = config_.pooling;
  const bool cls = pooling.mode == PoolingMode::kCls;
  transformer_->Pool(workspace, rows, cls ? 1 : std::max<int64_t>(1, pooling.includes_eos ? tokens : tokens - 1),
                     normalize, out);
}

bool Model::IsZeroShot(std::string_view source_code, std::string_view target_code) const {
  return std::any_of(config_.zero_shot_pairs.begin(), config_.zero_shot_pairs.end(), [&](const LanguagePair& pair) {
    return pair.source == source_code && pair.target == target_code;
  });
}

// Reads one language folder against an open model: as far as a plan, or whole.
class LanguageLoader {
 public:
  LanguageLoader(const Model& model, std::string code)
      : model_(model), code_(std::move(code)), folder_(fs::path(model.directory_) / "languages" / code_) {}

  absl::StatusOr<LanguagePlan> Plan() {
    if (code_.empty()) {
      LanguagePlan plan;
      plan.vocabulary = model_.shared_table_.vocabulary;
      return plan;
    }
    absl::Status status = ReadConfig();
    if (!status.ok()) return status;
    LanguagePlan plan;
    plan.stamp = Stamp();
    auto part = OpenPart(folder_ / "language.safetensors", LanguageTensors(model_.config_, language_->config_.adapter));
    if (!part.ok()) return part.status();
    status = LoadTokenizer(*part);
    if (!status.ok()) return status;
    status = Describe(*part);
    if (!status.ok()) return status;
    plan.config = language_->config_;
    plan.vocabulary = language_->weights_.vocabulary;
    plan.mapped_bytes = Arena::WholePages(part->builder->bytes());
    plan.tokenizer_bytes = language_->tokenizer_bytes_;
    for (const LoadedTensor& tensor : Loaded(*part->file, part->specs)) plan.parameters += tensor.parameters();
    for (const std::string& name : FoldersIn((folder_ / "adapters").string())) {
      Adapter adapter;
      auto further = OpenAdapter(name, &adapter);
      if (!further.ok()) return further.status();
      plan.adapters.push_back(name);
      plan.mapped_bytes += Arena::WholePages(further->builder->bytes());
    }
    return plan;
  }

  absl::StatusOr<std::shared_ptr<const Language>> Load() {
    if (code_.empty()) return Nameless();
    absl::Status status = ReadConfig();
    if (!status.ok()) return status;
    auto part = OpenPart(folder_ / "language.safetensors", LanguageTensors(model_.config_, language_->config_.adapter));
    if (!part.ok()) return part.status();
    status = LoadTokenizer(*part);
    if (!status.ok()) return status;
    status = Describe(*part);
    if (!status.ok()) return status;
    auto arena = part->builder->Build(ArenaName(model_.config_, code_));
    if (!arena.ok()) return arena.status();
    language_->arena_ = *std::move(arena);
    if (!model_.config_.shared_embedding) TieEmbedding(model_.config_, model_.precision(), &language_->weights_);
    language_->tensors_ = Loaded(*part->file, part->specs);
    for (const std::string& name : FoldersIn((folder_ / "adapters").string())) {
      auto adapter = std::make_unique<Adapter>();
      auto further = OpenAdapter(name, adapter.get());
      if (!further.ok()) return further.status();
      auto memory = further->builder->Build(ArenaName(model_.config_, absl::StrCat(code_, ":", name)));
      if (!memory.ok()) return memory.status();
      adapter->arena_ = *std::move(memory);
      adapter->tensors_ = Loaded(*further->file, further->specs);
      language_->adapters_.emplace(name, std::move(adapter));
    }
    return std::shared_ptr<const Language>(std::move(language_));
  }

 private:
  // A checked file and what will be packed from it.
  struct Part {
    std::unique_ptr<SafetensorsFile> file;
    std::vector<TensorSpec> specs;
    std::unique_ptr<ArenaBuilder> builder;
    int64_t vocabulary = 0;
  };

  absl::StatusOr<Part> OpenPart(const fs::path& path, std::vector<TensorSpec> specs) const {
    Part part;
    auto file = SafetensorsFile::Open(path.string());
    if (!file.ok()) return file.status();
    part.file = *std::move(file);
    part.specs = std::move(specs);
    const absl::Status status = CheckTensors(*part.file, part.specs, &part.vocabulary);
    if (!status.ok()) return status;
    part.builder = std::make_unique<ArenaBuilder>(*part.file, model_.precision());
    return part;
  }

  // What a model without languages has in place of one: the shared table and tokenizer, nothing of its own.
  absl::StatusOr<std::shared_ptr<const Language>> Nameless() const {
    if (!model_.nameless_) return absl::NotFoundError(absl::StrCat(model_.directory_, ": no language given"));
    auto language = std::make_shared<Language>();
    language->tokenizer_ = model_.shared_tokenizer_;
    language->weights_ = model_.shared_table_;
    language->weights_.encoder.resize(model_.config_.architecture.encoder_layers.size());
    language->weights_.decoder.resize(model_.config_.architecture.decoder_layers.size());
    language->shared_part_ = model_.arena_;
    const absl::Status status = CheckRows(*language->tokenizer_, language->weights_.vocabulary, model_.directory_);
    if (!status.ok()) return status;
    return std::shared_ptr<const Language>(std::move(language));
  }

  absl::Status ReadConfig() {
    std::error_code error;
    if (!fs::is_directory(folder_, error)) {
      const auto& listed = model_.config_.languages;
      const bool promised = std::find(listed.begin(), listed.end(), code_) != listed.end();
      return absl::NotFoundError(absl::StrCat(folder_.string(), ": no such language folder",
                                              promised ? absl::StrCat(", but model.json lists ", code_) : ""));
    }
    auto parsed = ReadLanguageConfig(folder_.string());
    if (!parsed.ok()) return parsed.status();
    if (parsed->code != code_) {
      return absl::InvalidArgumentError(absl::StrCat(folder_.string(), "/language.json: code is \"", parsed->code,
                                                     "\" but the folder is named \"", code_, "\""));
    }
    language_ = std::make_shared<Language>();
    language_->config_ = *std::move(parsed);
    return absl::OkStatus();
  }

  // Registers everything of the language's own file with the part's builder.
  absl::Status Describe(const Part& part) {
    const ModelConfig& config = model_.config_;
    Binder binder(config, *part.file, part.builder.get());
    kernels::LanguageWeights& weights = language_->weights_;
    if (config.shared_embedding) {
      weights = model_.shared_table_;
      language_->shared_part_ = model_.arena_;
    } else {
      weights.vocabulary = part.vocabulary;
      binder.Table(&weights);
    }
    binder.OwnStack(false, &weights.encoder);
    if (config.kind == ModelKind::kEncoderDecoder) binder.OwnStack(true, &weights.decoder);
    if (language_->config_.adapter.kind != AdapterKind::kNone) {
      language_->default_adapter_ = std::make_unique<Adapter>();
      language_->default_adapter_->config_ = language_->config_.adapter;
      binder.Adapter(language_->config_.adapter, &language_->default_adapter_->weights_);
    }
    return binder.status();
  }

  absl::StatusOr<Part> OpenAdapter(const std::string& name, Adapter* adapter) const {
    const fs::path folder = folder_ / "adapters" / name;
    const std::string path = (folder / "adapter.json").string();
    auto text = ReadJsonText(path);
    if (!text.ok()) return text.status();
    auto parsed = ParseAdapterConfig(*text, path);
    if (!parsed.ok()) return parsed.status();
    adapter->name_ = name;
    adapter->config_ = *std::move(parsed);
    auto part = OpenPart(folder / "adapter.safetensors", AdapterTensors(model_.config_, adapter->config_));
    if (!part.ok()) return part.status();
    Binder binder(model_.config_, *part->file, part->builder.get());
    binder.Adapter(adapter->config_, &adapter->weights_);
    if (!binder.status().ok()) return binder.status();
    return part;
  }

  absl::Status LoadTokenizer(const Part& part) {
    const ModelConfig& config = model_.config_;
    std::error_code error;
    const fs::path own = folder_ / "tokenizer.model";
    const std::optional<TokenizerConfig>& described = language_->config_.tokenizer;
    if (described.has_value() && config.shared_embedding) {
      return absl::InvalidArgumentError(
          absl::StrCat((folder_ / "language.json").string(),
                       ": tokenizer: the model has one vocabulary for all (sharing.embedding)"));
    }
    const bool slice = part.file->Find("vocab.ids") != nullptr;
    if (described.has_value() ||
        (slice && config.tokenizer.has_value() && !config.shared_embedding && !fs::exists(own, error))) {
      const fs::path home = described.has_value() ? folder_ : fs::path(model_.directory_);
      auto tokenizer = DescribedTokenizer(home, described.has_value() ? *described : *config.tokenizer, *part.file,
                                          config.special_tokens.unk, &language_->tokenizer_bytes_);
      if (!tokenizer.ok()) return tokenizer.status();
      language_->tokenizer_ = *std::move(tokenizer);
    } else if (fs::exists(own, error) && !config.shared_embedding) {
      auto tokenizer = LoadSentencePiece(own.string());
      if (!tokenizer.ok()) return tokenizer.status();
      language_->tokenizer_ = *std::move(tokenizer);
      language_->tokenizer_bytes_ = TokenizerHeap(own);
    } else if (model_.shared_tokenizer_ != nullptr) {
      language_->tokenizer_ = model_.shared_tokenizer_;
    } else {
      return absl::NotFoundError(absl::StrCat(own.string(), ": missing, and the model has no tokenizer.model for all"));
    }
    return CheckRows(*language_->tokenizer_,
                     config.shared_embedding ? model_.shared_table_.vocabulary : part.vocabulary, folder_.string());
  }

  absl::Status CheckRows(const Tokenizer& tokenizer, int64_t rows, const std::string& where) const {
    if (rows < tokenizer.size()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": the tokenizer has ", tokenizer.size(),
                                                     " pieces but the embedding table only ", rows, " rows"));
    }
    const SpecialTokens& special = model_.config_.special_tokens;
    for (const auto& [name, id] : {std::pair<const char*, int32_t>{"pad", special.pad},
                                   {"bos", special.bos},
                                   {"eos", special.eos},
                                   {"unk", special.unk}}) {
      if (id >= rows) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": special token ", name, " is ", id, " but the table has ", rows, " rows"));
      }
    }
    return absl::OkStatus();
  }

  // FNV-1a over name, size and time of every file.
  uint64_t Stamp() const {
    uint64_t hash = 0xcbf29ce484222325U;
    const auto mix = [&hash](const void* data, size_t size) {
      const auto* bytes = static_cast<const unsigned char*>(data);
      for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3U;
    };
    std::vector<std::string> files;
    std::error_code error;
    for (fs::recursive_directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
      files.push_back(it->path().string());
    }
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
      mix(file.data(), file.size());
      const uintmax_t size = fs::file_size(file, error);
      mix(&size, sizeof(size));
      const auto time = fs::last_write_time(file, error).time_since_epoch().count();
      mix(&time, sizeof(time));
    }
    return hash;
  }

  const Model& model_;
  const std::string code_;
  const fs::path folder_;
  std::shared_ptr<Language> language_;
};

// Fills a new Model. Its members are written here and nowhere else.
class SharedLoader {
 public:
  SharedLoader(const std::string& directory, const LoadOptions& options) : model_(new Model()) {
    model_->directory_ = directory;
    model_->options_ = options;
  }

  absl::StatusOr<std::shared_ptr<Model>> Open() {
    absl::Status status = kernels::CheckPrecision(model_->options_.precision);
    if (status.ok()) status = LoadConfig();
    if (status.ok()) status = LoadShared();
    if (!status.ok()) return status;
    return model_;
  }

  static absl::Status LoadLanguages(Model* model) {
    const std::vector<std::string> codes = model->LanguageCodes();
    if (codes.empty()) {
      return absl::NotFoundError(
          absl::StrCat(model->directory_, "/languages: no language folder, and model.json lists none"));
    }
    for (const std::string& code : codes) {
      auto language = model->LoadLanguage(code);
      if (!language.ok()) return language.status();
      const absl::Status added = model->names_.Add((*language)->config());
      if (!added.ok()) return absl::Status(added.code(), absl::StrCat(model->directory_, ": ", added.message()));
      model->languages_.push_back(*std::move(language));
    }
    for (const LanguagePair& pair : model->config_.zero_shot_pairs) {
      for (const std::string& code : {pair.source, pair.target}) {
        if (!model->names_.Find(code).ok()) {
          return absl::InvalidArgumentError(absl::StrCat(model->directory_, "/model.json: zero_shot_pairs names \"",
                                                         code, "\", which is no language of this model"));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  fs::path Path(const std::string& name) const { return fs::path(model_->directory_) / name; }

  absl::Status LoadConfig() {
    std::error_code error;
    const fs::path directory(model_->directory_);
    if (!fs::exists(directory, error)) {
      return absl::NotFoundError(absl::StrCat("model folder ", model_->directory_, " does not exist"));
    }
    if (!fs::is_directory(directory, error)) {
      return absl::InvalidArgumentError(absl::StrCat("model folder ", model_->directory_, " is not a folder"));
    }
    if (fs::is_empty(directory, error)) {
      return absl::NotFoundError(absl::StrCat("model folder ", model_->directory_, " is empty"));
    }
    auto config = ReadModelConfig(model_->directory_);
    if (!config.ok()) return config.status();
    model_->config_ = *std::move(config);
    return absl::OkStatus();
  }

  absl::Status LoadShared() {
    const ModelConfig& config = model_->config_;
    auto file = SafetensorsFile::Open(Path("shared.safetensors").string());
    if (!file.ok()) return file.status();
    const std::vector<TensorSpec> specs = SharedTensors(config);
    int64_t vocabulary = 0;
    absl::Status status = CheckTensors(**file, specs, &vocabulary);
    if (!status.ok()) return status;

    ArenaBuilder builder(**file, model_->options_.precision);
    Binder binder(config, **file, &builder);
    kernels::SharedWeights weights;
    binder.SharedStack(false, &weights.encoder);
    if (config.kind == ModelKind::kEncoderDecoder) binder.SharedStack(true, &weights.decoder);
    binder.Pooling(&weights.pooling);
    const float* sinusoids = nullptr;
    const int d_model = config.architecture.d_model;
    if (config.positions.type == PositionType::kSinusoidal) {
      const Positions& positions = config.positions;
      const int64_t count = config.architecture.max_positions;
      builder.Computed(
          count * d_model,
          [&, count](float* out) {
            kernels::SinusoidalPositions(d_model, positions.base, positions.exponent_half_minus_one,
                                         positions.first_position, count, out);
          },
          &sinusoids);
    }
    if (config.shared_embedding) {
      binder.Table(&model_->shared_table_);
      model_->shared_table_.vocabulary = vocabulary;
    }
    if (!binder.status().ok()) return binder.status();
    auto arena = builder.Build(ArenaName(config, "shared"));
    if (!arena.ok()) return arena.status();
    model_->arena_ = *std::move(arena);
    if (config.positions.type == PositionType::kSinusoidal) {
      weights.encoder.positions = sinusoids;
      weights.decoder.positions = sinusoids;
    } else if (config.positions.type == PositionType::kLearned) {
      weights.encoder.positions += config.positions.first_position * d_model;
      if (weights.decoder.positions != nullptr) weights.decoder.positions += config.positions.first_position * d_model;
    }
    if (config.shared_embedding) TieEmbedding(config, model_->options_.precision, &model_->shared_table_);
    model_->transformer_ = std::make_unique<kernels::Transformer>(config.architecture, weights);
    model_->shared_tensors_ = Loaded(**file, specs);

    std::error_code error;
    const fs::path tokenizer = Path("tokenizer.model");
    if (config.tokenizer.has_value()) {
      int64_t heap = 0;
      auto loaded = DescribedTokenizer(model_->directory_, *config.tokenizer, **file, config.special_tokens.unk, &heap);
      if (!loaded.ok()) return loaded.status();
      model_->shared_tokenizer_ = *std::move(loaded);
      model_->shared_tokenizer_bytes_ = heap;
    } else if (fs::exists(tokenizer, error)) {
      auto loaded = LoadSentencePiece(tokenizer.string());
      if (!loaded.ok()) return loaded.status();
      model_->shared_tokenizer_ = *std::move(loaded);
      model_->shared_tokenizer_bytes_ = TokenizerHeap(tokenizer);
    }
    if (config.shared_embedding && model_->shared_tokenizer_ == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(tokenizer.string(), ": missing, but the model shares one vocabulary (sharing.embedding)"));
    }
    const auto shared = [](const std::vector<kernels::LayerOwner>& layers) {
      return std::count(layers.begin(), layers.end(), kernels::LayerOwner::kShared) ==
             static_cast<std::ptrdiff_t>(layers.size());
    };
    model_->nameless_ = config.shared_embedding && config.languages.empty() &&
                        config.architecture.language_heads == 0 && shared(config.architecture.encoder_layers) &&
                        shared(config.architecture.decoder_layers);
    return absl::OkStatus();
  }

  std::shared_ptr<Model> model_;
};

absl::StatusOr<std::shared_ptr<const Model>> Model::Open(const std::string& directory, const LoadOptions& options) {
  auto model = SharedLoader(directory, options).Open();
  if (!model.ok()) return model.status();
  return std::shared_ptr<const Model>(*std::move(model));
}

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& directory, const LoadOptions& options) {
  auto model = SharedLoader(directory, options).Open();
  if (!model.ok()) return model.status();
  const absl::Status status = SharedLoader::LoadLanguages(model->get());
  if (!status.ok()) return status;
  return std::shared_ptr<const Model>(*std::move(model));
}

std::vector<std::string> Model::LanguageCodes() const {
  std::vector<std::string> codes = config_.languages;
  const std::set<std::string> listed(codes.begin(), codes.end());
  for (const std::string& code : FoldersIn(absl::StrCat(directory_, "/languages"))) {
    if (listed.count(code) == 0) codes.push_back(code);
  }
  if (codes.empty() && nameless_) codes.emplace_back();
  return codes;
}

absl::StatusOr<LanguagePlan> Model::PlanLanguage(const std::string& code) const {
  return LanguageLoader(*this, code).Plan();
}

absl::StatusOr<std::shared_ptr<const Language>> Model::LoadLanguage(const std::string& code) const {
  return LanguageLoader(*this, code).Load();
}

}  // namespace koine::model_loader
