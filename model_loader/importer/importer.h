// Turns a Hugging Face checkpoint into a Koine model (FORMAT.md): `koine-model import`.
//
// Families: M2M-100 and NLLB, mBART-25 and mBART-50, MarianMT, T5 and mT5, BERT, XLM-R and RoBERTa encoders with what
// sentence-transformers puts on top. Each is a table of names (hf_names) plus constants (families): the model that
// comes out runs through the one forward pass there is.
//
// Nothing of the checkpoint is executed. Whatever is not understood is refused by name or listed as dropped; nothing is
// guessed.
#ifndef KOINE_MODEL_LOADER_IMPORTER_IMPORTER_H_
#define KOINE_MODEL_LOADER_IMPORTER_IMPORTER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/dtype.h"

namespace koine::model_loader {

// Which rows a language's table gets.
enum class TableMode : uint8_t {
  kFull,    // one table and one tokenizer for all languages: the original's outputs
  kSample,  // a table for each language: the pieces of a text
  kScript,  // a table for each language: the pieces written in its script
};

// How Encode makes one vector, where the checkpoint itself does not say (it has no modules.json).
enum class PoolingChoice : uint8_t { kMean, kCls, kPooler };

struct ImportOptions {
  std::string folder;  // the checkpoint
  std::string out;     // the model's folder; must not exist
  std::string name;    // of the model; "": the checkpoint folder's
  // Codes or aliases, in this order. Empty: all that the checkpoint has tags for. Checkpoints without tags get language
  // folders only for what is named here.
  std::vector<std::string> languages;
  TableMode tables = TableMode::kFull;
  std::vector<std::pair<std::string, std::string>> samples;  // language, file of UTF-8 text; kSample needs one for each
  std::optional<kernels::DType> dtype;                       // F32, F16 or BF16; absent: each tensor's own
  std::optional<bool> legacy_source_order;                   // NLLB; absent: as tokenizer_config.json says
  std::optional<PoolingChoice> pooling;
  std::vector<std::string> zero_shot;  // "SOURCE-TARGET"

  // Called with the folder while it has a name of its own, complete but for the checksums; what it adds becomes part of
  // the model, and its error ends the import.
  std::function<absl::Status(const std::string& folder)> before_publishing;
  std::function<bool()> cancelled;                            // asked often; true ends the import with CANCELLED
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of tensors written
};

struct LanguageReport {
  std::string code, name, tag;
  std::vector<std::string> aliases;
  // Sliced tables only:
  int64_t rows = 0, table_bytes = 0;
  int64_t multiply_adds = 0;                     // per decoded token, with this table
  int64_t sample_pieces = 0;                     // pieces of the sample texts, with the whole vocabulary
  int64_t unknown_whole = 0, unknown_slice = 0;  // of them unknown, before and after
};

struct ImportReport {
  std::string family, name, out;
  int64_t tensors = 0;  // written
  int64_t bytes = 0;    // of them
  int64_t parameters = 0;
  int64_t rows = 0;           // of the checkpoint's table
  int64_t table_bytes = 0;    // of it (both, where the output has one of its own)
  int64_t pieces = 0;         // ids of the tokenizer
  int64_t multiply_adds = 0;  // per decoded token with the whole table; 0 for encoders
  bool sliced = false;
  std::vector<LanguageReport> languages;
  std::vector<std::string> tied;     // names that one table stands for
  std::vector<std::string> dropped;  // tensors of the checkpoint that have no place in the model
  std::vector<std::string> ignored;  // ... and that are known to need none
  std::vector<std::string> notes;    // everything else that people should know
  std::string account;               // the parameter account, a table
};

// Reads, checks, writes. `out` appears at once with everything in it, or not at all. Errors are one line:
//   NOT_FOUND          no such folder; a file that is missing, by name
//   ALREADY_EXISTS     `out` is there
//   INVALID_ARGUMENT   a foreign, broken or contradictory checkpoint; options that do not fit it
//   OUT_OF_RANGE       a value that the asked-for type cannot hold
//   CANCELLED, UNKNOWN the caller's wish; the file system's refusal
// Tensors are read and written row by row: memory stays below the checkpoint's own size.
absl::StatusOr<ImportReport> Import(const ImportOptions& options);

// The report for people, several lines.
std::string Render(const ImportReport& report);

}  // namespace koine::model_loader

#endif  // KOINE_MODEL_LOADER_IMPORTER_IMPORTER_H_
