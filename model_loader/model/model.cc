#include "model_loader/model/model.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model_loader/model/arena.h"
#include "model_loader/safetensors/safetensors.h"

namespace koine::model_loader {

namespace fs = std::filesystem;

namespace {

// JSON files of a model are small; a larger one is not what it claims to be.
constexpr uintmax_t kMaxJsonBytes = 16 << 20;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (size > kMaxJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", size, " bytes, more than the ", kMaxJsonBytes, " allowed"));
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return text.str();
}

// Every file of a folder whose name starts with a dot is somebody's work in progress (a language being copied in).
std::vector<std::string> FoldersIn(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.empty() || name[0] == '.' || !it->is_directory(error)) continue;
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<LoadedTensor> Loaded(const SafetensorsFile& file, const std::vector<TensorSpec>& specs) {
  std::vector<LoadedTensor> loaded;
  for (const TensorSpec& spec : specs) {
    const TensorView* tensor = file.Find(spec.name);
    if (tensor == nullptr) continue;  // optional
    loaded.push_back({spec.name, spec.component, tensor->shape, tensor->dtype, tensor->elements(),
                      static_cast<int64_t>(tensor->data.size())});
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
    // A projection of zero heads has no matrix, but its bias still counts.
    if (file_.Find(weights.front())->elements() > 0) Keep(builder_.Matrix(weights, &out->weight));
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
    const double rank = adapter.rank;
    out->scale = static_cast<float>(adapter.alpha / (adapter.rank_stabilised ? std::sqrt(rank) : rank));
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

// A tied table has one set of bytes: embedding rows are read from the packed output projection.
void TieEmbedding(const ModelConfig& config, kernels::Precision precision, kernels::LanguageWeights* weights) {
  if (config.kind == ModelKind::kEncoderDecoder && config.architecture.tied_output) {
    weights->embedding.packed = weights->output.weight;
  }
  weights->embedding.precision = precision;
}

// Levenshtein distance, for "did you mean".
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace

std::string NormalizeLanguageCode(std::string_view code) {
  std::string normal(code);
  for (char& c : normal) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return normal;
}

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
  int64_t bytes = static_cast<int64_t>(arena_->bytes());
  for (const auto& [name, adapter] : adapters_) bytes += adapter->mapped_bytes();
  return bytes;
}

int64_t Language::resident_bytes() const {
  int64_t bytes = static_cast<int64_t>(arena_->ResidentBytes());
  for (const auto& [name, adapter] : adapters_) bytes += adapter->resident_bytes();
  return bytes;
}

uint64_t Language::checksum() const { return arena_->Checksum(); }

int64_t Model::shared_mapped_bytes() const { return static_cast<int64_t>(arena_->bytes()); }
int64_t Model::shared_resident_bytes() const { return static_cast<int64_t>(arena_->ResidentBytes()); }
const void* Model::shared_address() const { return arena_->data(); }
uint64_t Model::shared_checksum() const { return arena_->Checksum(); }

absl::StatusOr<std::shared_ptr<const Language>> Model::FindLanguage(std::string_view code) const {
  const std::string normal = NormalizeLanguageCode(code);
  const auto found = by_name_.find(normal);
  if (found != by_name_.end()) return found->second;
  // Near ones: codes and aliases within two edits, or with the same primary subtag.
  std::set<std::string> near;
  const std::string primary = normal.substr(0, normal.find('-'));
  for (const auto& [name, language] : by_name_) {
    const size_t limit = std::min<size_t>(2, std::max<size_t>(1, normal.size() / 2));
    const bool same_primary = primary.size() >= 2 && name.substr(0, name.find('-')) == primary;
    if (same_primary || (normal.size() < 32 && EditDistance(normal, name) <= limit)) near.insert(language->code());
  }
  std::vector<std::string> all;
  for (const auto& language : languages_) all.push_back(language->code());
  // The list is cut: a model may have hundreds.
  constexpr size_t kListed = 20;
  const size_t total = all.size();
  if (total > kListed) all.resize(kListed);
  std::string shown(code.substr(0, 40));
  return absl::InvalidArgumentError(
      absl::StrCat(code.empty() ? std::string("no language given") : absl::StrCat("unknown language \"", shown, "\""),
                   near.empty() ? "" : absl::StrCat("; near ones: ", absl::StrJoin(near, ", ")), "; this model has: ",
                   absl::StrJoin(all, ", "), total > kListed ? absl::StrCat(" and ", total - kListed, " more") : ""));
}

bool Model::IsZeroShot(std::string_view source_code, std::string_view target_code) const {
  return std::any_of(config_.zero_shot_pairs.begin(), config_.zero_shot_pairs.end(), [&](const LanguagePair& pair) {
    return pair.source == source_code && pair.target == target_code;
  });
}

// Loads a model part by part. All members of Model and Language are written here and nowhere else.
class Loader {
 public:
  Loader(const std::string& directory, const LoadOptions& options) : model_(new Model()) {
    model_->directory_ = directory;
    model_->options_ = options;
  }

  absl::StatusOr<std::shared_ptr<const Model>> Load() {
    absl::Status status = kernels::CheckPrecision(model_->options_.precision);
    if (status.ok()) status = LoadConfig();
    if (status.ok()) status = LoadShared();
    if (status.ok()) status = LoadLanguages();
    if (!status.ok()) return status;
    return std::shared_ptr<const Model>(std::move(model_));
  }

 private:
  fs::path Path(const std::string& name) const { return fs::path(model_->directory_) / name; }
  std::string ArenaName(const std::string& part) const {
    return absl::StrCat("koine:", model_->config_.name, ":", part);
  }

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
    const std::string path = Path("model.json").string();
    auto text = ReadText(path);
    if (!text.ok()) return text.status();
    auto config = ParseModelConfig(*text, path);
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
    auto arena = builder.Build(ArenaName("shared"));
    if (!arena.ok()) return arena.status();
    model_->arena_ = *std::move(arena);
    if (config.positions.type == PositionType::kSinusoidal) {
      weights.encoder.positions = sinusoids;
      weights.decoder.positions = sinusoids;
    } else {
      weights.encoder.positions += config.positions.first_position * d_model;
      if (weights.decoder.positions != nullptr) weights.decoder.positions += config.positions.first_position * d_model;
    }
    if (config.shared_embedding) TieEmbedding(config, model_->options_.precision, &model_->shared_table_);
    model_->transformer_ = std::make_unique<kernels::Transformer>(config.architecture, weights);
    model_->shared_tensors_ = Loaded(**file, specs);

    std::error_code error;
    const fs::path tokenizer = Path("tokenizer.model");
    if (fs::exists(tokenizer, error)) {
      auto loaded = LoadSentencePiece(tokenizer.string());
      if (!loaded.ok()) return loaded.status();
      model_->shared_tokenizer_ = *std::move(loaded);
    }
    if (config.shared_embedding && model_->shared_tokenizer_ == nullptr) {
      return absl::NotFoundError(
          absl::StrCat(tokenizer.string(), ": missing, but the model shares one vocabulary (sharing.embedding)"));
    }
    return absl::OkStatus();
  }

  absl::Status LoadLanguages() {
    std::vector<std::string> codes = model_->config_.languages;
    const std::set<std::string> listed(codes.begin(), codes.end());
    for (const std::string& code : FoldersIn(Path("languages"))) {
      if (listed.count(code) == 0) codes.push_back(code);
    }
    if (codes.empty()) {
      return absl::NotFoundError(
          absl::StrCat(Path("languages").string(), ": no language folder, and model.json lists none"));
    }
    for (const std::string& code : codes) {
      auto language = LoadLanguage(code);
      if (!language.ok()) return language.status();
      model_->languages_.push_back(*std::move(language));
    }
    // Codes first: a code is never shadowed by another language's alias.
    for (const auto& language : model_->languages_) {
      const auto [it, fresh] = model_->by_name_.emplace(NormalizeLanguageCode(language->code()), language);
      if (!fresh) {
        return absl::InvalidArgumentError(
            absl::StrCat("languages ", it->second->code(), " and ", language->code(), " differ only in letter case"));
      }
    }
    std::map<std::string, std::string> owner_of_alias;
    for (const auto& language : model_->languages_) {
      for (const std::string& alias : language->config().aliases) {
        const std::string normal = NormalizeLanguageCode(alias);
        const auto [it, fresh] = model_->by_name_.emplace(normal, language);
        const auto owner = owner_of_alias.emplace(normal, language->code()).first;
        if (!fresh && owner->second != language->code()) {
          return absl::InvalidArgumentError(
              absl::StrCat("alias \"", alias, "\" is claimed by languages ", owner->second, " and ", language->code()));
        }
      }
    }
    for (const LanguagePair& pair : model_->config_.zero_shot_pairs) {
      for (const std::string& code : {pair.source, pair.target}) {
        if (model_->by_name_.count(NormalizeLanguageCode(code)) == 0) {
          return absl::InvalidArgumentError(absl::StrCat(Path("model.json").string(), ": zero_shot_pairs names \"",
                                                         code, "\", which is no language of this model"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const Language>> LoadLanguage(const std::string& code) {
    const ModelConfig& config = model_->config_;
    const fs::path folder = Path("languages") / code;
    std::error_code error;
    if (!fs::is_directory(folder, error)) {
      return absl::NotFoundError(absl::StrCat(folder.string(), ": missing, but model.json lists language ", code));
    }
    const std::string json_path = (folder / "language.json").string();
    auto text = ReadText(json_path);
    if (!text.ok()) return text.status();
    auto parsed = ParseLanguageConfig(*text, json_path);
    if (!parsed.ok()) return parsed.status();
    if (parsed->code != code) {
      return absl::InvalidArgumentError(
          absl::StrCat(json_path, ": code is \"", parsed->code, "\" but the folder is named \"", code, "\""));
    }
    auto language = std::make_shared<Language>();
    language->config_ = *std::move(parsed);

    auto file = SafetensorsFile::Open((folder / "language.safetensors").string());
    if (!file.ok()) return file.status();
    const std::vector<TensorSpec> specs = LanguageTensors(config, language->config_.adapter);
    int64_t vocabulary = 0;
    absl::Status status = CheckTensors(**file, specs, &vocabulary);
    if (!status.ok()) return status;

    status = LoadTokenizer(folder, vocabulary, language.get());
    if (!status.ok()) return status;

    ArenaBuilder builder(**file, model_->options_.precision);
    Binder binder(config, **file, &builder);
    kernels::LanguageWeights& weights = language->weights_;
    if (config.shared_embedding) {
      weights = model_->shared_table_;
      language->shared_part_ = model_->arena_;
    } else {
      weights.vocabulary = vocabulary;
      binder.Table(&weights);
    }
    binder.OwnStack(false, &weights.encoder);
    if (config.kind == ModelKind::kEncoderDecoder) binder.OwnStack(true, &weights.decoder);
    if (language->config_.adapter.kind != AdapterKind::kNone) {
      language->default_adapter_ = std::make_unique<Adapter>();
      language->default_adapter_->config_ = language->config_.adapter;
      binder.Adapter(language->config_.adapter, &language->default_adapter_->weights_);
    }
    if (!binder.status().ok()) return binder.status();
    auto arena = builder.Build(ArenaName(code));
    if (!arena.ok()) return arena.status();
    language->arena_ = *std::move(arena);
    if (!config.shared_embedding) TieEmbedding(config, model_->options_.precision, &weights);
    language->tensors_ = Loaded(**file, specs);

    for (const std::string& name : FoldersIn(folder / "adapters")) {
      auto adapter = LoadAdapter(folder / "adapters" / name, name, code);
      if (!adapter.ok()) return adapter.status();
      language->adapters_.emplace(name, *std::move(adapter));
    }
    return std::shared_ptr<const Language>(std::move(language));
  }

  absl::Status LoadTokenizer(const fs::path& folder, int64_t vocabulary, Language* language) {
    const ModelConfig& config = model_->config_;
    std::error_code error;
    const fs::path own = folder / "tokenizer.model";
    if (fs::exists(own, error) && !config.shared_embedding) {
      auto tokenizer = LoadSentencePiece(own.string());
      if (!tokenizer.ok()) return tokenizer.status();
      language->tokenizer_ = *std::move(tokenizer);
    } else if (model_->shared_tokenizer_ != nullptr) {
      language->tokenizer_ = model_->shared_tokenizer_;
    } else {
      return absl::NotFoundError(absl::StrCat(own.string(), ": missing, and the model has no tokenizer.model for all"));
    }
    const int64_t rows = config.shared_embedding ? model_->shared_table_.vocabulary : vocabulary;
    const int64_t pieces = language->tokenizer_->size();
    if (rows < pieces) {
      return absl::InvalidArgumentError(absl::StrCat(folder.string(), ": the tokenizer has ", pieces,
                                                     " pieces but the embedding table only ", rows, " rows"));
    }
    const SpecialTokens& special = config.special_tokens;
    for (const auto& [name, id] : {std::pair<const char*, int32_t>{"pad", special.pad},
                                   {"bos", special.bos},
                                   {"eos", special.eos},
                                   {"unk", special.unk}}) {
      if (id >= rows) {
        return absl::InvalidArgumentError(
            absl::StrCat(folder.string(), ": special token ", name, " is ", id, " but the table has ", rows, " rows"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Adapter>> LoadAdapter(const fs::path& folder, const std::string& name,
                                                       const std::string& code) {
    const std::string json_path = (folder / "adapter.json").string();
    auto text = ReadText(json_path);
    if (!text.ok()) return text.status();
    auto parsed = ParseAdapterConfig(*text, json_path);
    if (!parsed.ok()) return parsed.status();
    auto adapter = std::make_unique<Adapter>();
    adapter->name_ = name;
    adapter->config_ = *std::move(parsed);
    auto file = SafetensorsFile::Open((folder / "adapter.safetensors").string());
    if (!file.ok()) return file.status();
    const std::vector<TensorSpec> specs = AdapterTensors(model_->config_, adapter->config_);
    const absl::Status status = CheckTensors(**file, specs, nullptr);
    if (!status.ok()) return status;
    ArenaBuilder builder(**file, model_->options_.precision);
    Binder binder(model_->config_, **file, &builder);
    binder.Adapter(adapter->config_, &adapter->weights_);
    if (!binder.status().ok()) return binder.status();
    auto arena = builder.Build(ArenaName(absl::StrCat(code, ":", name)));
    if (!arena.ok()) return arena.status();
    adapter->arena_ = *std::move(arena);
    adapter->tensors_ = Loaded(**file, specs);
    return adapter;
  }

  std::shared_ptr<Model> model_;
};

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& directory, const LoadOptions& options) {
  return Loader(directory, options).Load();
}

}  // namespace koine::model_loader
