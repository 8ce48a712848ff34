// Files in, immutable model out: validates a model folder, packs every weight once, and hands out views.
//
// All parameter bytes live in named memory mappings (memfd): "koine:<model>:shared" once, "koine:<model>:<code>" per
// language, so that /proc/<pid>/smaps confirms what the account says. Source files are mapped only while packing.
#ifndef KOINE_MODEL_LOADER_MODEL_MODEL_H_
#define KOINE_MODEL_LOADER_MODEL_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/tensor/dtype.h"
#include "kernels/transformer/transformer.h"
#include "model_loader/format/config.h"
#include "model_loader/format/tensor_table.h"
#include "model_loader/model/language_names.h"
#include "model_loader/tokenizer/tokenizer.h"

namespace koine::model_loader {

class Arena;  // a named, read-only mapping that owns packed bytes

// One tensor of the tensor table as it was really loaded: what the account counts.
struct LoadedTensor {
  std::string name;
  Component component = Component::kNorm;
  std::vector<int64_t> shape;
  kernels::DType file_dtype = kernels::DType::kF32;
  int64_t elements = 0;
  int64_t file_bytes = 0;
  bool scales = false;  // row scales of an I8 matrix

  // What the account counts as parameters: neither row numbers nor scales are.
  int64_t parameters() const { return component == Component::kVocabularyIds || scales ? 0 : elements; }
};

// An adapter of a language, chosen per request. Immutable.
class Adapter {
 public:
  ~Adapter();
  const std::string& name() const { return name_; }  // "" is the default, from the language's own file
  const AdapterConfig& config() const { return config_; }
  const kernels::AdapterWeights& weights() const { return weights_; }
  absl::Span<const LoadedTensor> tensors() const { return tensors_; }
  // Of its own mapping; 0 for the default, which lies in the language's.
  int64_t mapped_bytes() const;
  int64_t resident_bytes() const;

 private:
  friend class LanguageLoader;
  std::string name_;
  AdapterConfig config_;
  kernels::AdapterWeights weights_;
  std::vector<LoadedTensor> tensors_;  // empty for the default: its tensors are listed with the language
  std::shared_ptr<const Arena> arena_;
};

// One language: its table, tokenizer and whatever else it owns. Immutable; requests hold a shared_ptr while they use
// it, and the memory goes when the last one lets go. A model without languages has one whose code is "" and which owns
// nothing.
class Language {
 public:
  ~Language();
  const LanguageConfig& config() const { return config_; }
  const std::string& code() const { return config_.code; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const kernels::LanguageWeights& weights() const { return weights_; }
  // The default adapter; null if the language has none.
  const Adapter* default_adapter() const { return default_adapter_.get(); }
  // NOT_FOUND naming the adapters there are. "none" and "" are the caller's business.
  absl::StatusOr<const Adapter*> FindAdapter(std::string_view name) const;
  std::vector<std::string> adapter_names() const;

  absl::Span<const LoadedTensor> tensors() const { return tensors_; }
  int64_t mapped_bytes() const;    // of this language's own mappings, named adapters included
  int64_t resident_bytes() const;  // of these, pages in memory now
  int64_t tokenizer_bytes() const { return tokenizer_bytes_; }  // heap of its own tokenizer, estimated
  uint64_t checksum() const;                                    // of the packed bytes, recomputed at each call
  // Rows that the table has beyond the tokenizer's pieces: they must never be generated.
  int64_t unusable_rows() const { return weights_.vocabulary - tokenizer_->size(); }

 private:
  friend class LanguageLoader;
  LanguageConfig config_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  kernels::LanguageWeights weights_;
  std::unique_ptr<Adapter> default_adapter_;
  std::map<std::string, std::unique_ptr<Adapter>, std::less<>> adapters_;
  std::vector<LoadedTensor> tensors_;
  int64_t tokenizer_bytes_ = 0;
  std::shared_ptr<const Arena> arena_;
  std::shared_ptr<const void> shared_part_;  // keeps what this language's views share alive
};

struct LoadOptions {
  kernels::Precision precision = kernels::Precision::kF32;
};

// What a language's folder would take, found out from its JSON and the headers of its files, without loading it.
struct LanguagePlan {
  LanguageConfig config;
  std::vector<std::string> adapters;
  int64_t mapped_bytes = 0;     // of all its mappings once loaded
  int64_t tokenizer_bytes = 0;  // heap of its tokenizer, estimated
  int64_t vocabulary = 0;
  int64_t parameters = 0;  // its own, further adapters not counted
  uint64_t stamp = 0;      // changes when any file of the folder does

  int64_t memory_bytes() const { return mapped_bytes + tokenizer_bytes; }
};

// The shared part of one model folder, and, after Load, its languages. Immutable; any thread.
class Model {
 public:
  // The shared part and every language of the folder. Errors name the file and everything that is wrong with it; one
  // broken language fails the load (a server takes languages one by one instead: Open and LoadLanguage).
  static absl::StatusOr<std::shared_ptr<const Model>> Load(const std::string& directory, const LoadOptions& options);
  // The shared part alone: languages() is empty.
  static absl::StatusOr<std::shared_ptr<const Model>> Open(const std::string& directory, const LoadOptions& options);
  ~Model();

  // Codes of the language folders there are now: those that model.json lists first (there or not), then the others.
  // The one code "" where there are none and the model needs none.
  std::vector<std::string> LanguageCodes() const;
  // Reads one language folder, as it is now. The result does not refer to this object.
  absl::StatusOr<LanguagePlan> PlanLanguage(const std::string& code) const;
  absl::StatusOr<std::shared_ptr<const Language>> LoadLanguage(const std::string& code) const;

  const ModelConfig& config() const { return config_; }
  const std::string& directory() const { return directory_; }
  kernels::Precision precision() const { return options_.precision; }
  const kernels::Transformer& transformer() const { return *transformer_; }

  // Languages that Load loaded, in the order of model.json.
  absl::Span<const std::shared_ptr<const Language>> languages() const { return languages_; }
  // By code or alias; case-insensitive, '-' and '_' alike. INVALID_ARGUMENT naming the code and near ones.
  absl::StatusOr<std::shared_ptr<const Language>> FindLanguage(std::string_view code) const;
  // One sentence's vector, config().embedding_size() numbers, from its encoder rows [tokens, d_model], as model.json
  // says; `normalize` is the caller's.
  void Pool(kernels::Workspace& workspace, const float* rows, int64_t tokens, bool normalize, float* out) const;
  bool IsZeroShot(std::string_view source_code, std::string_view target_code) const;

  absl::Span<const LoadedTensor> shared_tensors() const { return shared_tensors_; }
  int64_t shared_mapped_bytes() const;
  int64_t shared_resident_bytes() const;
  int64_t shared_tokenizer_bytes() const { return shared_tokenizer_bytes_; }  // heap, estimated; 0 without one
  const void* shared_address() const;                                         // start of the one shared mapping
  uint64_t shared_checksum() const;  // of the packed shared bytes, recomputed at each call

 private:
  friend class LanguageLoader;
  friend class SharedLoader;
  Model();
  std::string directory_;
  LoadOptions options_;
  ModelConfig config_;
  std::unique_ptr<kernels::Transformer> transformer_;
  std::vector<std::shared_ptr<const Language>> languages_;
  LanguageNames names_;  // of languages_
  std::vector<LoadedTensor> shared_tensors_;
  std::shared_ptr<const Tokenizer> shared_tokenizer_;  // null where each language has its own
  int64_t shared_tokenizer_bytes_ = 0;
  bool nameless_ = false;                  // nothing is a language's: the model can do without any
  kernels::LanguageWeights shared_table_;  // sharing.embedding == "shared": what every language views
  std::shared_ptr<const Arena> arena_;
};

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_MODEL_MODEL_H_
